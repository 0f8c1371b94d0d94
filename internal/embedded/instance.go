// Package embedded is Weir inside Envoy, except for Envoy's ABI: it parses the configuration of the dynamic module,
// builds descriptors of a request, decides them with internal/decide, and returns an answer for the filter.
// cmd/envoymodule connects it to Envoy's ABI.
//
// A Module has one instance per set of flags. Each filter_config is a Filter of an instance, each configuration of a
// route a Route. A request is a Call: it is decided at once, or later without blocking Envoy's worker.
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

// Module is the Weir of one Envoy process. It is safe for concurrent use.
type Module struct {
	// Log receives the log lines of all instances.
	Log io.Writer

	survival survival

	starting sync.Mutex  // held while an instance starts, which may wait for rules; Envoy's workers do not need it
	pace     *app.GCPace // set by the first instance; protected by starting

	mu        sync.Mutex // held only briefly
	instances []*instance
	closing   sync.WaitGroup // for instances that are closing
}

// instance is a Weir with its rules and counters. All filters with equal flags share it, so that two listeners have
// common counters, and updating a listener keeps them.
type instance struct {
	app       *app.App
	log       *logging.Process
	options   app.Options // the parsed options
	filters   int         // number of filters that use it; protected by Module.mu
	stop      context.CancelFunc
	ended     chan struct{} // closed when Run has returned
	collector *collector
}

// NewFilter parses filter_config, and starts an instance unless another filter has the same flags.
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

// CheckFilter parses filter_config as NewFilter does, without starting an instance, to validate a configuration.
func CheckFilter(config []byte) error {
	_, _, err := readFilter(config)
	return err
}

// readFilter parses filter_config and its flags.
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

// acquire returns the instance with these options, and adds a filter to it.
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

// share returns the running instance with these options, and adds a filter to it. It returns nil if there is none.
func (m *Module) share(o *app.Options) *instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, in := range m.instances {
		if reflect.DeepEqual(in.options, *o) { //nolint:govet // an error in the options differs, too
			in.filters++
			return in
		}
	}
	return nil
}

// start starts an instance with one filter.
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
	log.Logger = log.With(slog.String("program", "weir")) // to distinguish it from Envoy's lines
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

// run runs the App until ctx is done. If Run fails before, the instance continues to decide without background work.
func (in *instance) run(ctx context.Context) {
	defer close(in.ended)
	if err := in.app.Run(ctx); err != nil {
		in.log.LogAttrs(ctx, slog.LevelError, "a part of Weir has failed", slog.String("error", err.Error()))
	}
}

// release ends a filter's use of the instance. After the last filter, it closes the instance in the background.
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

// close stops the instance and frees its parts.
func (in *instance) close() {
	ctx := context.Background()
	in.stop()
	<-in.ended
	if err := in.app.Close(); err != nil {
		in.log.LogAttrs(ctx, slog.LevelWarn, "Weir has not closed cleanly", slog.String("error", err.Error()))
	}
	in.log.Close()
}

// Wait waits until the instances without filters are closed, at most for limit. Then leased permits are released and
// the last log lines are written.
func (m *Module) Wait(limit time.Duration) {
	app.Within(limit, m.closing.Wait)
}
