// Package embedded is Weir inside Envoy, without Envoy: it reads the configuration of the dynamic module, makes
// descriptors of a request, has internal/decide decide it, and says what the filter is to do. Package main in
// cmd/envoymodule joins it to Envoy's ABI.
//
// A Module has one Instance for each set of flags. Each filter_config is a Filter of an Instance, each route's own
// configuration a Route. A request is a Call: it is decided at once, or later without keeping Envoy's worker waiting.
package embedded

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/weir-ratelimit/weir/internal/app"
	"github.com/weir-ratelimit/weir/internal/cli"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/panics"
)

// Module is Weir inside one Envoy. Its methods are safe for concurrent use.
type Module struct {
	// Log receives the lines of all instances.
	Log io.Writer

	survival survival

	starting sync.Mutex  // of an instance: it may wait for rules, and Envoy's workers must not
	pace     *app.GCPace // from the first instance on; guarded by starting

	mu        sync.Mutex // held for a moment
	instances []*instance
	closing   sync.WaitGroup // for instances that are being closed
}

// instance is a Weir with its rules and counters. All filters with equal flags share it, so that two listeners count
// together, and an update of a listener keeps the counters.
type instance struct {
	app       *app.App
	log       *logging.Process
	options   app.Options // as they were read
	filters   int         // that use it; the module's lock guards it
	stop      context.CancelFunc
	ended     chan struct{} // Run has returned
	collector *collector
}

// NewFilter reads filter_config, and starts what its flags say unless another filter has the same flags. The error says
// what is wrong.
func (m *Module) NewFilter(config []byte) (*Filter, error) {
	s, o, err := readFilter(config)
	if err != nil {
		return nil, err
	}
	in, err := m.acquire(o)
	if err != nil {
		return nil, fmt.Errorf("filter_config: flags: %w", err)
	}
	return newFilter(m, in, s), nil
}

// CheckFilter reads filter_config as NewFilter does, but starts nothing: for a program that only validates its
// configuration.
func CheckFilter(config []byte) error {
	_, _, err := readFilter(config)
	return err
}

// readFilter reads filter_config and its flags.
func readFilter(config []byte) (*settings, *app.Options, error) {
	s, err := parseFilter(config)
	if err != nil {
		return nil, nil, err
	}
	o, err := cli.ParseEmbedded(s.Flags)
	if err != nil {
		return nil, nil, fmt.Errorf("filter_config: flags: %w", err)
	}
	return s, o, nil
}

// acquire returns the instance with these options, for one more filter.
func (m *Module) acquire(o *app.Options) (*instance, error) {
	m.starting.Lock()
	defer m.starting.Unlock()
	if in := m.share(o); in != nil {
		return in, nil
	}
	in, err := m.start(o)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.instances = append(m.instances, in)
	return in, nil
}

// share returns the running instance with these options, for one more filter; nil if there is none.
func (m *Module) share(o *app.Options) *instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, in := range m.instances {
		if reflect.DeepEqual(in.options, *o) {
			in.filters++
			return in
		}
	}
	return nil
}

// start makes an instance for one filter, and runs it.
func (m *Module) start(o *app.Options) (in *instance, err error) {
	defer func() {
		if why := recover(); why != nil {
			in, err = nil, fmt.Errorf("the start panicked: %v\n%s", why, debug.Stack())
		}
	}()
	m.survival.start(m.Log)
	log, err := logging.NewProcess(m.Log, o.Logging)
	if err != nil {
		return nil, err
	}
	log.Logger = log.With(slog.String("program", "weir")) // among Envoy's lines
	if m.pace == nil {
		if m.pace, err = app.StartSharedGCPace(); err != nil {
			log.LogAttrs(context.Background(), slog.LevelWarn, "the container's memory limit cannot be read",
				slog.String("error", err.Error()))
		}
	}
	options := *o
	options.Log, options.HoldGC, options.LogQueue = log.Logger, m.pace.Hold, log.Queue
	a, err := app.New(context.Background(), options)
	if err != nil {
		log.Close()
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	in = &instance{
		app: a, log: log, options: *o, filters: 1, stop: stop, ended: make(chan struct{}),
		collector: &collector{decider: a.Decider()},
	}
	m.survival.instances.Store(in, nil)
	panics.Go("instance", func() { in.run(ctx) })
	return in, nil
}

// run works until ctx is done. An instance whose run has ended by itself goes on deciding, without what its parts do.
func (in *instance) run(ctx context.Context) {
	defer close(in.ended)
	if err := in.app.Run(ctx); err != nil {
		in.log.LogAttrs(ctx, slog.LevelError, "a part has ended", slog.String("error", err.Error()))
	}
}

// release ends a filter's use of the instance. The last one closes it, without waiting: Wait does.
func (m *Module) release(in *instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in.filters--; in.filters > 0 {
		return
	}
	m.instances = slices.DeleteFunc(m.instances, func(other *instance) bool { return other == in })
	m.closing.Add(1)
	panics.Go("end of an instance", func() {
		defer m.closing.Done()
		defer m.survival.instances.Delete(in)
		in.close()
	})
}

// close stops the instance and frees what it has.
func (in *instance) close() {
	ctx := context.Background()
	in.stop()
	<-in.ended
	if err := in.app.Close(); err != nil {
		in.log.LogAttrs(ctx, slog.LevelWarn, "not closed in order", slog.String("error", err.Error()))
	}
	in.log.Close()
}

// Wait returns when the instances without filters are closed, or after the limit: permits on lease are returned, and
// the last lines of logs are written.
func (m *Module) Wait(limit time.Duration) {
	closed := make(chan struct{})
	panics.Go("wait for instances", func() {
		defer close(closed)
		m.closing.Wait()
	})
	select {
	case <-closed:
	case <-time.After(limit):
	}
}
