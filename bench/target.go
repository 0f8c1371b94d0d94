package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/launch"
)

// spec describes a server that the benchmark can start.
type spec struct {
	name   string
	about  string
	binary string // "weir", "peer", or "noop" for this program itself
	redis  string // network of Weir's own Redis: "unix" or "tcp"; "" for counters in memory
	fields string // fields of every limit in addition to the algorithm
}

// Names of targets. The others are compared with nameNoop; namePeer is envoyproxy/ratelimit.
const (
	nameNoop = "noop"
	namePeer = "peer"
)

var specs = []spec{
	{name: nameNoop, about: "grpc-go, default options, answers OK", binary: nameNoop},
	{name: "memory", about: "Weir, counters in memory", binary: "weir"},
	{name: "redis", about: "Weir, strict, Redis over a Unix socket", binary: "weir", redis: "unix"},
	{
		name: "leased", about: "Weir, consistency: leased, Redis over a Unix socket", binary: "weir", redis: "unix",
		fields: "consistency: leased",
	},
	{name: "redis-tcp", about: "Weir, strict, Redis over TCP", binary: "weir", redis: "tcp"},
	{name: namePeer, about: "envoyproxy/ratelimit, Redis over a Unix socket", binary: namePeer, redis: "unix"},
}

// patience is the time that a program may take to start or stop.
const patience = 30 * time.Second

// target is a running server.
type target struct {
	name     string
	addr     string // host:port
	admin    string // host:port of Weir's HTTP address, or ""
	pid      int    // or 0
	redisPID int    // or 0
	socket   string // of its Redis, or ""
	alwaysOK bool   // responds with OK for any rules
	primed   map[string]bool
	procs    []*launch.Process
}

// starter starts targets in a directory.
type starter struct {
	dir       string
	weir      string // path of the program
	algorithm string

	storeTimeout time.Duration // Weir's --store-timeout
}

// starter returns a starter for the program in the options, or for a new build.
func (o *options) starter(dir string) (*starter, error) {
	s := &starter{dir: dir, weir: o.weir, algorithm: o.Algorithm, storeTimeout: o.storeTimeout}
	if s.weir != "" {
		return s, nil
	}
	var err error
	s.weir, err = launch.Build("weir-bench", "cmd/weir", "-trimpath", "-pgo=auto")
	return s, err
}

// start starts the named target.
func (s *starter) start(ctx context.Context, name string) (*target, error) {
	i := slices.IndexFunc(specs, func(p spec) bool { return p.name == name })
	if i < 0 {
		return nil, fmt.Errorf("no target %q: there are %s", name, strings.Join(specNames(), ", "))
	}
	addr, err := launch.FreeAddr(ctx)
	if err != nil {
		return nil, err
	}
	t := &target{name: name, addr: addr, primed: map[string]bool{}}
	switch specs[i].binary {
	case nameNoop:
		err = s.startNoop(ctx, t)
	case namePeer:
		err = s.startPeer(ctx, t)
	default:
		err = s.startWeir(ctx, t, &specs[i])
	}
	if err != nil {
		t.stop()
		return nil, err
	}
	return t, nil
}

func specNames() []string {
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = s.name
	}
	return names
}

func (s *starter) startNoop(ctx context.Context, t *target) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	p, err := t.run(nameNoop, exec.Command(self, "-serve-noop", t.addr)) //nolint:noctx // ours; stop ends it
	if err != nil {
		return err
	}
	t.pid, t.alwaysOK = p.PID(), true
	return p.Await(ctx, patience, func(ctx context.Context) error { return launch.Dial(ctx, "tcp", t.addr) })
}

// startWeir starts Weir and waits until it is ready.
func (s *starter) startWeir(ctx context.Context, t *target, sp *spec) error {
	rules := filepath.Join(s.dir, "rules-"+t.name)
	if err := os.Mkdir(rules, 0o700); err != nil {
		return err
	}
	// Deny on a store failure, so that decisions without Redis appear as wrong results.
	fields := []string{"algorithm: " + s.algorithm, "on_store_failure: deny"}
	if sp.fields != "" {
		fields = append(fields, sp.fields)
	}
	if err := writeRules(rules, strings.Join(fields, ", ")); err != nil {
		return err
	}
	store := "memory"
	if sp.redis != "" {
		var err error
		if store, err = s.startRedis(ctx, t, sp.redis); err != nil {
			return err
		}
	}
	admin, err := launch.FreeAddr(ctx)
	if err != nil {
		return err
	}
	p, err := t.run(t.name, exec.Command(s.weir, "serve", //nolint:noctx // ours; stop ends it
		"--rules", rules, "--grpc-addr", t.addr, "--http-addr", admin, "--store", store,
		"--store-timeout", s.storeTimeout.String(), "--drain-delay", "0s", "--pprof"))
	if err != nil {
		return err
	}
	t.pid, t.admin = p.PID(), admin
	return p.Await(ctx, patience, func(ctx context.Context) error { return launch.Ready(ctx, "http://"+admin+"/readyz") })
}

// startRedis starts a redis-server without persistence and returns its URL.
func (s *starter) startRedis(ctx context.Context, t *target, network string) (string, error) {
	binary, err := launch.Find("redis-server")
	if err != nil {
		return "", err
	}
	addr, err := launch.FreeAddr(ctx)
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	t.socket = filepath.Join(s.dir, t.name+".sock")
	p, err := t.run(t.name+"-redis", exec.Command(binary, //nolint:noctx // ours; stop ends it
		"--bind", "127.0.0.1", "--port", port, "--unixsocket", t.socket, "--dir", s.dir, "--save", "", "--appendonly", "no"))
	if err != nil {
		return "", err
	}
	t.redisPID = p.PID()
	url := "redis://" + addr + "/0"
	if network == "unix" {
		url = "unix://" + t.socket + "?db=0"
	}
	return url, p.Await(ctx, patience, func(ctx context.Context) error {
		_, err := scriptCalls(ctx, t.socket)
		return err
	})
}

// run starts a program that stop ends.
func (t *target) run(name string, cmd *exec.Cmd) (*launch.Process, error) {
	p, err := launch.Start(name, cmd)
	if err == nil {
		t.procs = append(t.procs, p)
	}
	return p, err
}

func (t *target) stop() {
	for _, p := range slices.Backward(t.procs) {
		p.Stop(patience)
	}
}

// lastWords returns the end of the output of the target's programs, to explain a wrong response.
func (t *target) lastWords() string {
	const most = 2000 // bytes per program
	var b strings.Builder
	for _, p := range t.procs {
		out := p.Output()
		fmt.Fprintf(&b, "%s: %s\n", p.Name(), out[max(0, len(out)-most):])
	}
	return b.String()
}

// usage is the resources used by a target and by other programs so far, or a difference of two usages.
type usage struct {
	server, redis, envoy time.Duration // CPU time
	self, machine        time.Duration // CPU time of this process, and of all processes
	calls                uint64        // number of scripts that Redis has run
	took                 time.Duration // for a difference: the time between the two
}

func (t *target) usage(ctx context.Context) (u usage, err error) {
	if t.pid != 0 {
		if u.server, err = cpuTime(t.pid); err != nil {
			return u, fmt.Errorf("CPU time of %s: %w", t.name, err)
		}
	}
	if t.redisPID != 0 {
		if u.redis, err = cpuTime(t.redisPID); err != nil {
			return u, fmt.Errorf("CPU time of the Redis of %s: %w", t.name, err)
		}
	}
	if t.socket != "" {
		if u.calls, err = scriptCalls(ctx, t.socket); err != nil {
			return u, err
		}
	}
	if u.self, err = cpuTime(os.Getpid()); err != nil {
		return u, err
	}
	u.machine, err = machineTime()
	return u, err
}

// during returns the resources used while do runs. read returns the resources used so far.
func during(ctx context.Context, read func(context.Context) (usage, error), do func()) (usage, error) {
	before, err := read(ctx)
	if err != nil {
		return usage{}, err
	}
	start := time.Now()
	do()
	took := time.Since(start)
	after, err := read(ctx)
	return usage{
		server: after.server - before.server, redis: after.redis - before.redis, envoy: after.envoy - before.envoy,
		self: after.self - before.self, machine: after.machine - before.machine, calls: after.calls - before.calls,
		took: took,
	}, err
}

// others returns the share of the machine that other programs used. If it is large, the results are not reliable.
func (u *usage) others() float64 {
	others := u.machine - u.server - u.redis - u.envoy - u.self
	return max(0, others.Seconds()/u.took.Seconds()/float64(runtime.NumCPU()))
}

// machineTime returns the CPU time of all processes since the machine started, in steps of 10 ms.
func machineTime() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	return busy(string(stat))
}

// busy adds user, nice, system, irq, softirq and steal of the first line of /proc/stat.
func busy(stat string) (time.Duration, error) {
	const tick = 10 * time.Millisecond // the unit for programs, independent of the kernel's tick
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var ticks int64
	for _, i := range []int{1, 2, 3, 6, 7, 8} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// scriptCalls returns the number of scripts, functions and INCRBY commands (of the peer) that the Redis behind a Unix
// socket has run.
func scriptCalls(ctx context.Context, socket string) (uint64, error) {
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: socket, ReadTimeout: patience, PoolSize: 1})
	defer client.Close() //nolint:errcheck // nothing was written that could be lost
	text, err := client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	return sumCalls(text)
}

// sumCalls adds the calls of EVALSHA, EVAL, FCALL and INCRBY in the output of INFO commandstats.
func sumCalls(info string) (sum uint64, err error) {
	for line := range strings.Lines(info) {
		name, rest, _ := strings.Cut(line, ":calls=")
		switch name {
		case "cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall", "cmdstat_incrby":
			digits, _, _ := strings.Cut(rest, ",")
			n, err := strconv.ParseUint(digits, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("INFO commandstats: %q: %w", line, err)
			}
			sum += n
		}
	}
	return sum, nil
}
