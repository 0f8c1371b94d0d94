package cli

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/weir-ratelimit/weir/internal/app"
	"github.com/weir-ratelimit/weir/internal/logging"
)

// flagGroups are the headings in the help. Most groups have flags of serve.
var flagGroups = []kong.Group{
	{Key: "rules", Title: "Rules:"},
	{Key: "xds", Title: "Rules by xDS:"},
	{Key: "store", Title: "Counters:"},
	{Key: "listen", Title: "Listening:"},
	{Key: "tls", Title: "TLS and access:"},
	{Key: "grpc", Title: "gRPC:"},
	{Key: "quota", Title: "Quotas for Envoys (experimental):"},
	{Key: "headers", Title: "Response headers:"},
	{Key: "decide", Title: "Meaning of rules:"},
	{Key: "metrics", Title: "Metrics:"},
	{Key: "otel", Title: "OpenTelemetry:"},
	{Key: "stop", Title: "Stopping:"},
	{Key: "log", Title: "Logging:"},
	{Key: "server", Title: "Running process:"},
}

type serveCmd struct {
	Options app.Options `embed:""`

	// Remarks are logged at the start. Origins are, by flag, the variables of envoyproxy/ratelimit that set it.
	Remarks []string            `kong:"-"`
	Origins map[string][]string `kong:"-"`
}

func (*serveCmd) Help() string {
	return `weir help TOPIC shows all flags of a topic: rules, xds, store, listen, tls, grpc, quota, headers, decide,
metrics, otel, stop, log.

SIGHUP reloads the rule files. SIGTERM and SIGINT stop after the requests in flight; a second signal stops at once.

Exit codes: 0 stopped by a signal; 1 the start or the process failed (wrong rules, an address in use); 2 the command
line, a variable or the path of the rules is wrong.

Examples:

    weir serve --rules /etc/weir/rules
    WEIR_STORE=redis://:secret@redis:6379/0 weir serve --rules shop.yaml --rules api.yaml --log-format json
    WEIR_STORE=redis://:secret@redis:6379/0 weir serve --rules store
    weir serve --rules xds --xds-server envoy-gateway:18001`
}

// Run serves until a signal.
func (c *serveCmd) Run(ctx context.Context, io streams) error {
	o := c.Options
	if err := o.Check(); err != nil {
		if c.Origins != nil {
			return &environmentError{withOrigins(err, c.Origins)}
		}
		return usage(err)
	}
	signal.Ignore(syscall.SIGPIPE) // the reader of the log may exit; Weir continues to serve
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP) // from the start, because SIGHUP ends a process by default
	defer signal.Stop(hangup)
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the next signal ends the process

	log, err := logging.NewProcess(io.err, o.Logging) //nolint:contextcheck // the log continues after ctx is done
	if err != nil {
		return err
	}
	o.Log, o.LogQueue, o.Build = log.Logger, log.Queue, build()
	if c.Origins != nil {
		o.Log.LogAttrs(ctx, slog.LevelWarn, "compatibility mode: the process is called ratelimit, so it reads the "+
			"environment of envoyproxy/ratelimit and ignores arguments")
	}
	for _, remark := range c.Remarks {
		o.Log.LogAttrs(ctx, slog.LevelWarn, "a variable of envoyproxy/ratelimit", slog.String("remark", remark))
	}
	if err = endInTime(ctx, &o, func() error { return serve(ctx, o, hangup) }); err != nil {
		report(log, withOrigins(err, c.Origins))
		err = errReported
	}
	log.Close()
	return err
}

// endInTime returns the result of f, or an error if f does not end within the bounds of a stop after ctx.
func endInTime(ctx context.Context, o *app.Options, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	late := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(o.StopBound(), func() { close(late) })
	})()
	select {
	case err := <-ended:
		return err
	case <-late:
		return errors.New("a part of the process hangs during the stop, so the process ends without waiting for that part")
	}
}

// serve creates an App, runs it and closes it.
func serve(ctx context.Context, o app.Options, hangup <-chan os.Signal) error {
	pace, err := app.StartGCPace()
	if err != nil {
		o.Log.LogAttrs(ctx, slog.LevelWarn, "the container's memory limit cannot be read, so GOMEMLIMIT is not set",
			slog.String("error", err.Error()))
	}
	defer pace.Stop()
	o.HoldGC = pace.Hold
	a, err := app.New(ctx, o)
	if err != nil {
		return err
	}
	go reloadOn(ctx, hangup, a)
	return errors.Join(a.Run(ctx), a.Close())
}

// reloadOn reloads the rules at each signal until ctx is done.
func reloadOn(ctx context.Context, hangup <-chan os.Signal, a *app.App) {
	for {
		select {
		case <-hangup:
			_ = a.Reload(ctx) // logged by the App
		case <-ctx.Done():
			return
		}
	}
}
