package store_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// userA and userB are arguments of redis-server.
var userA, userB = strings.Fields("--user a on >one ~* &* +@all"), strings.Fields("--user b on >one ~* &* +@all")

// rotation is a running store whose user changes from a to b.
type rotation struct {
	*testing.T

	store   *store.Store
	log     proctest.Buffer
	servers []*redistest.Server
	before  map[string]string // users by connection
}

func startRotation(t *testing.T, url string, servers ...*redistest.Server) *rotation {
	t.Helper()
	r := &rotation{T: t, servers: servers}
	r.store = opened(t, url, slog.New(slog.NewTextHandler(&r.log, nil)))
	run(t, r.store)
	takeOne(t, r.store, limiter.Hit{Key: "k", Policy: funnel(t, 1000), N: 1})
	return r
}

// users returns the users a and b of the servers' connections, except of subscriptions.
func (r *rotation) users() map[string]string {
	users := map[string]string{}
	for _, s := range r.servers {
		list := fmt.Sprint(redistest.Do(r, s, "client", "list", "type", "normal"))
		for _, found := range regexp.MustCompile(`(?m)^id=(\d+) .* user=([ab]) `).FindAllStringSubmatch(list, -1) {
			users[s.Addr()+" "+found[1]] = found[2]
		}
	}
	return users
}

// isB returns an error unless a connection of user a became a connection of user b on each of the servers.
func (r *rotation) isB() error {
	same, now := map[string]bool{}, r.users()
	for id, user := range now {
		if r.before[id] == "a" && user == "b" {
			same[strings.Fields(id)[0]] = true
		}
	}
	if len(same) < len(r.servers) {
		return fmt.Errorf("before: %v, now: %v, log: %s", r.before, now, r.log.String())
	}
	return nil
}

// takeUntil decides hits until check returns nil.
func (r *rotation) takeUntil(check func() error) {
	r.Helper()
	redistest.Await(r, func() error {
		takeOne(r.T, r.store, limiter.Hit{Key: "k", Policy: funnel(r.T, 1_000_000), N: 1})
		return check()
	})
}

func (r *rotation) logs(text string) func() error {
	return func() error {
		if log := r.log.String(); !strings.Contains(log, text) {
			return errors.New(log)
		}
		return nil
	}
}

// load decides hits in several goroutines. more waits for some decisions; stop returns the first errors.
func (r *rotation) load() (more func(), stop func() error) {
	var decided atomic.Int64
	var wait sync.WaitGroup
	ended, errs := make(chan struct{}), make([]error, 8)
	for i := range errs {
		hit := []limiter.Hit{{Key: fmt.Sprint("load|", i), Policy: funnel(r.T, 1_000_000), N: 1}}
		wait.Go(func() {
			for out := make([]limiter.Decision, 1); ; decided.Add(1) {
				select {
				case <-ended:
					return
				default:
					errs[i] = cmp.Or(errs[i], r.store.Take(r.Context(), hit, out))
				}
			}
		})
	}
	more = func() {
		enough := decided.Load() + 500
		redistest.Await(r, func() error {
			if decided.Load() < enough {
				return errors.New("too few decisions")
			}
			return nil
		})
	}
	return more, func() error { close(ended); wait.Wait(); return errors.Join(errs...) }
}

// TestCredentialsChangeUnderLoad replaces user a by user b. The connections go on as user b, so Redis may then delete
// user a, which closes its connections. No decision fails.
func TestCredentialsChangeUnderLoad(t *testing.T) {
	args := slices.Concat(userA, userB)
	for name, start := range map[string]func(t *testing.T) (url string, masters []*redistest.Server){
		"server": func(t *testing.T) (string, []*redistest.Server) {
			s := redistest.Start(t, args...)
			return strings.Replace(s.URL(), "redis", "valkey", 1) + "?", []*redistest.Server{s}
		},
		"sentinel": func(t *testing.T) (string, []*redistest.Server) {
			s := redistest.StartSentinel(t, args...)
			return s.URL() + "&", []*redistest.Server{s.Master}
		},
		"cluster": func(t *testing.T) (string, []*redistest.Server) {
			c := redistest.StartCluster(t, 3, args...)
			return c.URL() + "?", c.Masters
		},
	} {
		t.Run(name, func(t *testing.T) {
			url, masters := start(t)
			user := filepath.Join(t.TempDir(), "user")
			proctest.Replace(t, user, "a\n")
			r := startRotation(t, strings.Replace(url, "//", "//:one@", 1)+"username_file="+user, masters...)
			more, stop := r.load()
			more()
			r.before = r.users()
			proctest.Replace(t, user, "b\n")
			redistest.Await(t, r.isB)
			more()
			for _, m := range masters {
				redistest.Do(t, m, "acl", "deluser", "a")
			}
			more()
			if err := stop(); err != nil || strings.Contains(r.log.String(), "cannot be renewed") {
				t.Errorf("decisions failed: %v, log: %s", err, r.log.String())
			}
		})
	}
}

// TestFileThatFails: a file that is empty for a minute is used within 2 s after it is corrected. Until then, the log
// has the reason every 30 s.
func TestFileThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, log := filepath.Join(t.TempDir(), "password"), proctest.Buffer{}
		proctest.Replace(t, path, "one")
		password := store.WatchPasswordFile(t.Context(), path, slog.New(slog.NewTextHandler(&log, nil)))
		proctest.Replace(t, path, "")
		time.Sleep(time.Minute + time.Millisecond)
		if n := strings.Count(log.String(), "the file is empty"); password() != "one" || n < 2 || n > 3 {
			t.Errorf("password %q, %d failures logged:\n%s", password(), n, log.String())
		}
		proctest.Replace(t, path, "two")
		time.Sleep(2 * time.Second)
		if synctest.Wait(); password() != "two" {
			t.Errorf("after 2 s, the password is %q", password())
		}
	})
}

// TestPasswordCommand runs a program whose answer expires in 2 s. If it fails, or Redis refuses its answer, the
// connection keeps its user.
func TestPasswordCommand(t *testing.T) {
	server, program := redistest.Start(t, userA...), filepath.Join(t.TempDir(), "token.sh")
	write := func(text string) {
		t.Helper()
		proctest.Replace(t, program, "[ \"$1 $2\" = 'for weir' ] || exit 3\n"+text+"\n")
	}
	write(`echo '{"username": "a", "password": "one", "expires": '$(($(date +%s) + 2))'}'`)
	r := startRotation(t, server.URL()+"?password_command=sh+"+program+"+for%20weir", server)
	write("echo two; echo 'the vault is sealed' >&2; exit 1")
	r.takeUntil(r.logs(`error="password_command: exit status 1" stderr="the vault is sealed"`))
	write(`echo '{"username": "b", "password": "two"}'`)
	r.takeUntil(r.logs("Redis refuses them: WRONGPASS"))
	r.before = r.users()
	redistest.Do(t, server, "acl", "setuser", "b", "on", ">two", "~*", "&*", "+@all")
	r.takeUntil(r.isB)
	if log := r.log.String(); strings.Contains(log, "two") || strings.Contains(log, "for weir") {
		t.Error(log)
	}
}

// The end of the context ends the program and its children, which keep a pipe open.
func TestPasswordCommandEnds(t *testing.T) {
	pipe, program := filepath.Join(t.TempDir(), "pipe"), filepath.Join(t.TempDir(), "token.sh")
	proctest.Replace(t, program, "exec 3>"+pipe+"; (echo >&3; sleep 20; echo late >&3) & wait\n")
	ctx, cancel := context.WithCancel(t.Context())
	read, err := make(chan string), syscall.Mkfifo(pipe, 0o600)
	go func() {
		from, err := os.Open(pipe)
		_, _ = from.Read(make([]byte, 1)) // waits for the child
		cancel()
		text, readErr := io.ReadAll(from)
		read <- fmt.Sprint(string(text), cmp.Or(err, readErr))
	}()
	r, connectErr := store.Connect(ctx, "redis://h?password_command=sh+"+program, redisstore.Options{})
	if got := <-read; got != "<nil>" || cmp.Or(err, connectErr, r.Close()) != nil {
		t.Error(got, err, connectErr)
	}
}

// A program that cannot be run is the error of each call, without the URL's text.
func TestPasswordCommandThatCannotRun(t *testing.T) {
	for command, want := range map[string]string{
		"h4nter2": "password_command: executable file not found", "/dev/h4nter2": "password_command: no such file",
		"true": "password_command: it prints no password", "yes+h4nter2": "password_command: it prints more than 64 KiB;",
		"sh+-c+yes>%262": "password_command: it prints more than 64 KiB;",
	} {
		err := counts(t, open(t, "redis://127.0.0.1:1?password_command="+command, patient))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "h4nter2") {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
