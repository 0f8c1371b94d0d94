package podtest

import (
	"bufio"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// pagePatience is the maximum time of a block of a page on a busy machine.
const pagePatience = 5 * time.Minute

//go:embed driver.sh
var driver string

// envoyScript is the command envoy for pages. It raises Envoy's timeouts for calls to Weir, because the tests keep all
// cores busy and a timed-out call would admit a request.
const envoyScript = `#!/usr/bin/env bash
args=()
for arg; do
  if [ -f "$arg" ]; then
    sed 's/timeout: 0.02s/timeout: 10s/' "$arg" >"$TMPDIR/${arg//\//-}"
    arg=$TMPDIR/${arg//\//-}
  fi
  args+=("$arg")
done
exec %s "${args[@]}" --concurrency 1 --log-level warning
`

// Setting is the environment of a page, if it needs more than a plain machine.
type Setting struct {
	Files    string            // a folder whose files are copied to the page's folder first; "" for none
	Programs map[string]string // further programs: bash scripts by name
	Env      []string          // further variables, as name=value
	Host     bool              // use the test's network and processes instead of separate namespaces
}

// RunPage runs the commands of a page of docs/ as a reader types them: in an empty folder, with the built weir, a real
// Envoy and a real Redis. It compares their output with the page.
//
// A page stays plain Markdown. The blocks have these meanings, from top to bottom:
//
//	```sh                              commands; one bash runs all of them
//	```sh title="Terminal 2"           commands that stay in the foreground, such as weir serve. RunPage starts them
//	                                   in parallel and waits until they respond. A later block with the same title
//	                                   first stops them.
//	```text                            after commands: their output. Three dots match any text in a line, and a line
//	                                   of three dots matches any lines. After a terminal's commands: lines that must
//	                                   appear there.
//	```yaml title="rules/shop.yaml"    a file to write. Any language but sh.
//	```yaml title="envoy.yaml: routes" replaces the first key routes of that file, with its value
//	```yaml title="envoy.yaml: routes of app"
//	                                   the same for the first key routes of the listener app
//
// All other blocks have no effect. A comment on the line before a block of commands changes the expected result:
//
//	<!-- not run: needs a registry --> the block has no effect, for this reason
//	<!-- exit code 1 -->               its last command ends with this code
//
// All other commands of a block must succeed.
//
// Under -short it skips the test. It requires Linux, and a user who may create namespaces, such as root.
func RunPage(t *testing.T, page string, setting Setting) {
	t.Helper()
	proctest.SkipIfShort(t, "Envoy")
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := parse(string(text))
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	r := newRunner(t, page, setting)
	awaitDay(t, string(text))
	for i := range blocks {
		begin := time.Now()
		r.step(blocks, i)
		t.Logf("%s:%d: took %s", page, blocks[i].line, time.Since(begin).Round(time.Millisecond))
	}
}

// calendarZone matches the time zone of a page's calendar windows.
var calendarZone = regexp.MustCompile(`align: calendar, time_zone: ([A-Za-z_/]+)`)

// awaitDay waits if the day is about to end and the page counts per day, because two days would be two windows.
func awaitDay(t *testing.T, page string) {
	t.Helper()
	m := calendarZone.FindStringSubmatch(page)
	if m == nil {
		return
	}
	zone, err := time.LoadLocation(m[1])
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().In(zone)
	if left := time.Until(time.Date(now.Year(), now.Month(), now.Day()+1, 0, 0, 0, 0, zone)); left < 3*time.Minute {
		t.Logf("waits until midnight in %s", zone)
		<-time.After(left)
	}
}

// runner runs the blocks of one page.
type runner struct {
	t     *testing.T
	page  string
	dir   string // the page's initial folder
	tmp   string // files of the runner
	in    io.Writer
	reply chan string
	files int

	outputs map[string]string // file of the output, by terminal
	weirs   map[string]string // address of a weir that serves rules from files, by terminal

	loadedRules string            // hash of the rules that every weir has loaded
	loaded      map[string]string // result of loads at that time
}

func newRunner(t *testing.T, page string, setting Setting) *runner {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{
		t: t, page: page, dir: filepath.Join(root, "page"), tmp: filepath.Join(root, "tmp"),
		reply: make(chan string), outputs: map[string]string{}, weirs: map[string]string{},
	}
	for _, program := range []string{"bash", "curl", "redis-server", "redis-cli", "ip", "ss"} {
		proctest.Program(t, program)
	}
	bin := filepath.Join(root, "bin")
	for _, dir := range []string{r.dir, r.tmp, bin} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(proctest.WeirBinary(t), filepath.Join(bin, "weir")); err != nil {
		t.Fatal(err)
	}
	envoy, err := launch.FindEnvoy()
	if err != nil {
		t.Fatal(err)
	}
	r.write(filepath.Join(bin, "envoy"), fmt.Sprintf(envoyScript, envoy), 0o755)
	r.write(filepath.Join(r.tmp, ".curlrc"), "no-progress-meter\n", 0o644) // which curl omits on a terminal
	script := filepath.Join(r.tmp, "driver.sh")
	r.write(script, driver, 0o644)
	for name, text := range setting.Programs {
		r.write(filepath.Join(bin, name), text, 0o755)
	}
	if setting.Files != "" {
		if err := os.CopyFS(r.dir, os.DirFS(setting.Files)); err != nil {
			t.Fatal(err)
		}
	}

	args := []string{"bash", "--noprofile", "--norc", script}
	if !setting.Host {
		args = append(namespaces(t), args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = r.dir
	cmd.Env = []string{
		"HOME=" + r.tmp, "PATH=" + bin + ":" + os.Getenv("PATH"), "LANG=C.UTF-8", "TMPDIR=" + r.tmp,
		"WEIR_STORE_TIMEOUT=10s",
	}
	cmd.Env = append(cmd.Env, setting.Env...)
	r.connect(cmd)
	return r
}

// namespaces returns the command that runs another command in its own network and PID namespaces.
func namespaces(t *testing.T) []string {
	t.Helper()
	args := []string{proctest.Program(t, "unshare"), "--net", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}
	prepare := `mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec "$@"`
	return append(args, "bash", "-c", prepare, "bash")
}

// connect starts the driver. It kills the driver, and thereby all processes of the page, when the test ends.
func (r *runner) connect(cmd *exec.Cmd) {
	r.t.Helper()
	replies, out, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{out}
	if r.in, err = cmd.StdinPipe(); err != nil {
		r.t.Fatal(err)
	}
	p := proctest.Start(r.t, "the page's shell", cmd)
	_ = out.Close() // the driver has a copy
	go func() {
		defer close(r.reply)
		for lines := bufio.NewScanner(replies); lines.Scan(); {
			r.reply <- lines.Text()
		}
	}()
	r.t.Cleanup(func() {
		p.Kill()
		_ = replies.Close()
		for range r.reply {
			// until the goroutine has ended
		}
		if r.t.Failed() {
			for name, file := range r.outputs {
				r.t.Logf("%s printed:\n%s", name, read(file))
			}
		}
	})
}

// step runs one block.
func (r *runner) step(blocks []block, i int) {
	r.t.Helper()
	b := &blocks[i]
	switch b.kind {
	case commands:
		r.awaitLoads(b)
		r.run(b, blocks[i+1:])
	case file:
		r.write(r.path(b), b.text, 0o644)
	case patch:
		path := r.path(b)
		text, err := replaceKey(read(path), b.key, b.below, b.text)
		if err != nil {
			r.fatal(b, "%s: %v", b.title, err)
		}
		r.write(path, text, 0o644)
	case terminal:
		r.start(b)
	case output:
		if before := &blocks[i-1]; before.kind == terminal {
			r.awaitOutput(before.title, b)
		}
	case shown:
	}
}

// run runs a block of commands, and compares their output with the next block if that shows it.
func (r *runner) run(b *block, next []block) {
	r.t.Helper()
	got, last, failed := r.shell(b.text)
	r.t.Logf("%s:%d: %s%s", r.page, b.line, b.text, got)
	switch {
	case last != b.exit:
		r.fatal(b, "the last command ended with %d, want %d", last, b.exit)
	case failed != 0 && b.exit == 0:
		r.fatal(b, "a command ended with %d", failed)
	case len(next) > 0 && next[0].kind == output && !matchLines(next[0].text, got):
		r.fatal(&next[0], "the page shows\n%s\nthe commands printed what is above", next[0].text)
	}
}

// readsNoFiles matches a weir whose rules are not in files.
var readsNoFiles = regexp.MustCompile(`--rules[ =](store|xds)\b`)

// start starts a block of commands in parallel, and returns when they respond.
func (r *runner) start(b *block) {
	r.t.Helper()
	name := strings.ReplaceAll(b.title, " ", "-")
	path := r.script(b.text)
	r.outputs[b.title] = path + ".out"
	delete(r.weirs, b.title)
	r.awaitLoads(b)
	pid, _ := r.ask("start " + path + " " + name)
	var ready string
	ended := 1 // the status to return if the command ends
	switch {
	case strings.Contains(b.text, "weir serve"):
		addr := "localhost:8080"
		if m := regexp.MustCompile(`--http-addr[ =]\S*?:([0-9]+)`).FindStringSubmatch(b.text); m != nil {
			addr = "localhost:" + m[1]
		}
		if strings.Contains(b.text, "--http-tls-cert") {
			addr = "--insecure https://" + addr
		}
		if !readsNoFiles.MatchString(b.text) {
			r.weirs[b.title] = addr
		}
		ready = "curl -sf " + addr + "/readyz"
	case strings.Contains(b.text, "envoy "):
		ready = "curl -sf localhost:9901/ready"
	case strings.Contains(b.text, "redis-server"):
		ready = "redis-cli ping"
	default: // the command listens or ends
		listeners, _, _ := r.shell("ss -Hltn")
		ready = fmt.Sprintf("[ $(ss -Hltn | wc -l) -gt %d ]", strings.Count(listeners, "\n"))
		ended = 0
	}
	got, last, _ := r.shell(fmt.Sprintf("( until %s >/dev/null; do kill -0 %d || exit %d; sleep 0.02; done ) 2>&1",
		ready, pid, ended))
	if last != 0 {
		r.fatal(b, "%s ended by itself: %s", b.title, got)
	}
	r.loaded = r.loads()
}

// awaitOutput waits until a terminal has printed the lines that a page shows.
func (r *runner) awaitOutput(name string, b *block) {
	r.t.Helper()
	for began := time.Now(); !containsLines(b.text, read(r.outputs[name])); time.Sleep(launch.Pause(began)) {
		if time.Since(began) > pagePatience {
			r.fatal(b, "%s does not show\n%s", name, b.text)
		}
	}
}

// rules returns a hash of all files in folders named rules.
func (r *runner) rules() string {
	sum := sha256.New()
	err := filepath.WalkDir(r.dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() && strings.Contains(path[len(r.dir):], "/rules") {
			fmt.Fprintf(sum, "%s %q\n", path, read(path))
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// loads returns the metric weir_rules_loads_total of each weir that serves.
func (r *runner) loads() map[string]string {
	loads := map[string]string{}
	for _, addr := range r.weirs {
		loads[addr], _, _ = r.shell("curl -s " + addr + "/metrics | grep ^weir_rules_loads_total")
	}
	return loads
}

// awaitLoads waits until every weir that serves has loaded or refused the rules that have changed since the last call.
func (r *runner) awaitLoads(b *block) {
	r.t.Helper()
	rules := r.rules()
	if rules == r.loadedRules {
		r.loaded = r.loads()
		return
	}
	for began := time.Now(); ; time.Sleep(launch.Pause(began)) {
		waiting := 0
		loads := r.loads()
		for addr, count := range r.loaded {
			if now, serves := loads[addr]; serves && now == count {
				waiting++
			}
		}
		if waiting == 0 {
			r.loadedRules, r.loaded = rules, loads
			return
		}
		if time.Since(began) > pagePatience {
			r.fatal(b, "%d weirs do not load the changed rules", waiting)
		}
	}
}

// shell runs commands in the page's shell, and returns their output, the exit code of the last one, and the exit code
// of the last one that failed.
func (r *runner) shell(text string) (out string, last, failed int) {
	path := r.script(text)
	last, failed = r.ask("run " + path)
	return read(path + ".out"), last, failed
}

// ask sends a request to the driver and returns the response.
func (r *runner) ask(request string) (first, second int) {
	r.t.Helper()
	if _, err := io.WriteString(r.in, request+"\n"); err != nil {
		r.t.Fatalf("%s: the page's shell is gone: %v", r.page, err)
	}
	select {
	case line, open := <-r.reply:
		if _, err := fmt.Sscan(line, &first, &second); !open || err != nil {
			r.t.Fatalf("%s: the page's shell ended or answered %q: may this user create namespaces (unshare)?", r.page, line)
		}
	case <-time.After(pagePatience):
		file := strings.Fields(request)[1]
		r.t.Fatalf("%s: this still runs after %s:\n%s\nIt printed:\n%s", r.page, pagePatience, read(file), read(file+".out"))
	}
	return first, second
}

// path returns the path of a block's file: below the working directory of the page's shell.
func (r *runner) path(b *block) string {
	r.t.Helper()
	dir, _, _ := r.shell("pwd")
	path := filepath.Join(strings.TrimSpace(dir), b.title)
	if !strings.HasPrefix(path, r.dir) {
		r.fatal(b, "%s is not below the page's folder", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// script writes commands to a new file.
func (r *runner) script(text string) string {
	r.files++
	path := filepath.Join(r.tmp, fmt.Sprintf("block-%d.sh", r.files))
	r.write(path, text, 0o644)
	return path
}

func (r *runner) write(path, text string, mode fs.FileMode) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		r.t.Fatal(err)
	}
}

// fatal fails the test at a line of the page.
func (r *runner) fatal(b *block, format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("%s:%d: %s", r.page, b.line, fmt.Sprintf(format, args...))
}

// read returns the text of a file, or "" if it cannot be read.
func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return err.Error()
	}
	return string(text)
}
