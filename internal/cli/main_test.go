package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter/memstore"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"weir": func() { os.Exit(Main("", "")) }})
}

// Scripts find a Redis under $REDIS, unless they are skipped by [short].
func TestScripts(t *testing.T) {
	url, path := "", os.Getenv("PATH")
	if !testing.Short() {
		url = redistest.Start(t).URL()
		if !casetest.IsLong() {
			path = quickPath(t)
		}
	}
	deploy, err := filepath.Abs("../../deploy")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true, RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", path)
			e.Setenv("REDIS", url)
			e.Setenv("DEPLOY", deploy)
			e.Setenv("GORACE", "atexit_sleep_ms=10") // 1 s by default, after each of hundreds of commands
			return nil
		},
	})
}

// quickPath returns a PATH in which weir serve is this test's binary, with the race detector if the test has it, and
// every other command is the built program: it starts five times as fast, and scripts run hundreds of them.
func quickPath(t *testing.T) string {
	t.Helper()
	serve, err := exec.LookPath("weir")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\ncase $1 in serve) exec %q \"$@\" ;; *) exec %q \"$@\" ;; esac\n",
		serve, proctest.WeirBinary(t))
	if err := os.WriteFile(filepath.Join(dir, "weir"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir + string(os.PathListSeparator) + os.Getenv("PATH")
}

// serveFlags are the flags of serve, --help left out.
func serveFlags(t *testing.T) map[string]*kong.Flag {
	t.Helper()
	parser, err := newParser(&cli{}, streams{out: t.Output(), err: t.Output()}, func(int) {})
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]*kong.Flag{}
	for _, command := range parser.Model.Children {
		if command.Name != "serve" {
			continue
		}
		for _, f := range command.Flags {
			flags[f.Name] = f
		}
	}
	if len(flags) < 20 {
		t.Fatalf("found %d flags: this test no longer finds them", len(flags))
	}
	return flags
}

// Every flag can be set by the environment, under the name that its own name leads one to expect, is explained,
// and stands below a heading.
func TestFlagsAreComplete(t *testing.T) {
	for name, f := range serveFlags(t) {
		env := "WEIR_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		if len(f.Envs) != 1 || f.Envs[0] != env {
			t.Errorf("--%s has the environment variables %v, want %s", name, f.Envs, env)
		}
		if !strings.HasSuffix(f.Help, ".") {
			t.Errorf("--%s has the help %q, want a sentence", name, f.Help)
		}
		if f.Group == nil || f.Group.Title == "" {
			t.Errorf("--%s stands below no heading", name)
		} else if topics, _, _ := strings.Cut((*serveCmd)(nil).Help(), "."); !strings.Contains(topics, f.Group.Key) {
			t.Errorf("the help does not name the topic %s", f.Group.Key)
		}
		if !f.HasDefault && !f.Required && !f.IsBool() && f.PlaceHolder == "" {
			t.Errorf("--%s has neither a default nor a placeholder to show", name)
		}
	}
}

// The defaults of flags are those of the packages that they configure.
func TestDefaults(t *testing.T) {
	flags := serveFlags(t)
	for name, want := range map[string]any{
		"store-key-prefix":    redisstore.DefaultKeyPrefix,
		"store-timeout":       redisstore.DefaultTimeout,
		"memory-max-counters": memstore.DefaultMaxCounters,
		"max-descriptors":     decide.DefaultMaxDescriptors,
		"max-counters":        decide.DefaultMaxCounters,
		"max-delayed":         decide.DefaultMaxDelayed,
	} {
		var got any
		if f := flags[name]; f != nil {
			f.Reset() //nolint:errcheck // an error shows as a wrong value
			got = f.Target.Interface()
		}
		if got != want {
			t.Errorf("--%s is %v by default, want %v", name, got, want)
		}
	}
}

// A signal, as the end of the context, ends serve with exit code 0, and the log tells of start and end.
func TestServeEnds(t *testing.T) {
	rules := t.TempDir() + "/rules.yaml"
	if err := os.WriteFile(rules, []byte("domain: shop\ndescriptors: [{key: a}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var out strings.Builder
	log := &logged{want: "msg=serving", seen: cancel}
	code := run(ctx, []string{
		"serve", "--rules", rules, "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0", "--drain-delay", "0s",
	}, &out, log)
	if code != exitOK || !strings.Contains(log.text.String(), "msg=stopped all_answered=true") || out.Len() > 0 {
		t.Errorf("exit code %d, stdout %q, log:\n%s", code, out.String(), log.text.String())
	}
}

// logged collects log lines and calls seen at the first that contains want. slog writes one line at a time.
type logged struct {
	text strings.Builder
	want string
	seen func()
}

func (l *logged) Write(line []byte) (int, error) {
	if strings.Contains(string(line), l.want) {
		l.seen()
	}
	return l.text.Write(line)
}

// cmd/weir and cmd/sidecar are one program, built with one profile.
func TestProgramsAreOne(t *testing.T) {
	for _, name := range []string{"default.pgo", "main.go"} {
		var texts [2]string
		for i, folder := range []string{"../../cmd/weir", "../../cmd/sidecar"} {
			data, err := os.ReadFile(filepath.Join(folder, name))
			if err != nil {
				t.Fatal(err)
			}
			_, texts[i], _ = strings.Cut(string(data), "\n") // but for the comment of main.go
		}
		if texts[0] != texts[1] {
			t.Errorf("cmd/weir/%s and cmd/sidecar/%[1]s differ", name)
		}
	}
}
