// Package chrometest runs a real Chromium for tests, without a window, over its DevTools protocol. It talks by a pipe, so that
// no port and no library of websockets is needed.
package chrometest

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long anything may take on a busy machine.
const patience = 30 * time.Second

// names are what distributions call it.
var names = []string{"chromium", "chromium-browser", "google-chrome"}

// Browser is a running Chromium with one page.
type Browser struct {
	tb      testing.TB
	process *proctest.Process
	session string

	mu      sync.Mutex
	in      io.Writer
	id      int
	answers map[int]chan message
	err     error    // why nothing more is read
	said    []string // on the console, exceptions and violations of the policy too
	asked   []string // URLs
}

// message is of the protocol: an answer has ID, an event Method.
type message struct {
	ID        int             `json:"id,omitempty"`
	SessionID string          `json:"sessionId,omitempty"`
	Method    string          `json:"method,omitempty"`
	Params    json.RawMessage `json:"params,omitempty"`
	Result    json.RawMessage `json:"result,omitempty"`
	Error     *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Start runs Chromium until the test ends. Under -short it skips the test; without a Chromium it fails it, and says how to get
// one.
func Start(tb testing.TB) *Browser {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs Chromium: left out by -short")
	}
	path := ""
	for _, name := range names {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		tb.Fatalf("needs Chromium, and there is none of %s in PATH: make tools installs it (apt-get install chromium)", strings.Join(names, ", "))
	}
	toBrowser, in := pipe(tb)
	out, fromBrowser := pipe(tb)
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--force-color-profile=srgb", "--hide-scrollbars",
		"--user-data-dir="+tb.TempDir(), "--remote-debugging-pipe", "about:blank")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // 3 and 4
	b := &Browser{tb: tb, in: in, answers: map[int]chan message{}}
	b.process = proctest.Start(tb, "Chromium", cmd)
	for _, f := range cmd.ExtraFiles {
		if err := f.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(out)
	}()
	tb.Cleanup(func() {
		b.process.Kill()
		_ = in.Close()
		_ = out.Close()
		<-read
	})
	b.attach()
	return b
}

func pipe(tb testing.TB) (r, w *os.File) {
	tb.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	return r, w
}

// attach begins to talk with the page that is there from the start.
func (b *Browser) attach() {
	b.tb.Helper()
	var targets struct {
		TargetInfos []struct{ TargetID, Type string }
	}
	for deadline := time.Now().Add(patience); ; {
		b.call("Target.getTargets", nil, &targets)
		for _, t := range targets.TargetInfos {
			if t.Type == "page" {
				var attached struct{ SessionID string }
				b.call("Target.attachToTarget", map[string]any{"targetId": t.TargetID, "flatten": true}, &attached)
				b.session = attached.SessionID
				for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
					b.call(domain+".enable", nil, nil)
				}
				return
			}
		}
		if time.Now().After(deadline) {
			b.tb.Fatal("Chromium has no page")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// read takes what the browser says, messages that end in a 0, until the pipe is closed.
func (b *Browser) read(out io.Reader) {
	for r := bufio.NewReader(out); ; {
		text, err := r.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		b.mu.Lock()
		if err != nil {
			b.err = err
			for _, answer := range b.answers {
				close(answer)
			}
			b.answers = nil
			b.mu.Unlock()
			return
		}
		if answer := b.answers[m.ID]; answer != nil {
			delete(b.answers, m.ID)
			answer <- m
		}
		b.note(&m)
		b.mu.Unlock()
	}
}

// note remembers an event.
func (b *Browser) note(m *message) {
	var p struct {
		Type    string
		Args    []struct{ Value, Description any }
		Request struct{ URL string }
		Entry   struct{ Level, Text, URL string }
		Details struct {
			Exception struct{ Description string } `json:"exception"`
		} `json:"exceptionDetails"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		return
	}
	switch m.Method {
	case "Runtime.consoleAPICalled":
		b.said = append(b.said, fmt.Sprint(p.Type, p.Args))
	case "Runtime.exceptionThrown":
		b.said = append(b.said, p.Details.Exception.Description)
	case "Log.entryAdded":
		b.said = append(b.said, fmt.Sprint(p.Entry.Level, ": ", p.Entry.Text, " ", p.Entry.URL))
	case "Network.requestWillBeSent":
		b.asked = append(b.asked, p.Request.URL)
	}
}

// call sends one command and decodes its result.
func (b *Browser) call(method string, params, result any) {
	b.tb.Helper()
	if err := b.tryCall(method, params, result); err != nil {
		b.tb.Fatalf("%s: %v", method, err)
	}
}

func (b *Browser) tryCall(method string, params, result any) error {
	answer := make(chan message, 1)
	if err := b.send(method, params, answer); err != nil {
		return err
	}
	select {
	case m, ok := <-answer:
		switch {
		case !ok:
			return errors.New("it has ended")
		case m.Error != nil:
			return errors.New(m.Error.Message)
		case result == nil:
			return nil
		}
		return json.Unmarshal(m.Result, result)
	case <-time.After(patience):
		return fmt.Errorf("no answer within %s", patience)
	}
}

func (b *Browser) send(method string, params any, answer chan message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return b.err
	}
	b.id++
	text, err := json.Marshal(struct {
		message
		Params any `json:"params,omitempty"`
	}{message{ID: b.id, SessionID: b.session, Method: method}, params})
	if err != nil {
		return err
	}
	b.answers[b.id] = answer
	_, err = b.in.Write(append(text, 0))
	return err
}

// Open goes to a URL, and returns when the page has loaded.
func (b *Browser) Open(url string) {
	b.tb.Helper()
	var went struct{ ErrorText string }
	b.call("Page.navigate", map[string]any{"url": url}, &went)
	if went.ErrorText != "" {
		b.tb.Fatalf("%s: %s", url, went.ErrorText)
	}
	b.Await("document.readyState === 'complete' && location.href !== 'about:blank'")
}

// Eval is the value of a JavaScript expression in the page, which may be a promise.
func (b *Browser) Eval(expression string) any {
	b.tb.Helper()
	v, err := b.eval(expression)
	if err != nil {
		b.tb.Fatalf("%s: %v", expression, err)
	}
	return v
}

// Text is Eval of an expression that is a text.
func (b *Browser) Text(expression string) string {
	b.tb.Helper()
	text, ok := b.Eval(expression).(string)
	if !ok {
		b.tb.Fatalf("%s is no text", expression)
	}
	return text
}

func (b *Browser) eval(expression string) (any, error) {
	var answer struct {
		Result           struct{ Value any }
		ExceptionDetails *struct {
			Exception struct{ Description string }
		}
	}
	err := b.tryCall("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	if err == nil && answer.ExceptionDetails != nil {
		err = errors.New(answer.ExceptionDetails.Exception.Description)
	}
	return answer.Result.Value, err
}

// Await waits until a JavaScript expression is true.
func (b *Browser) Await(expression string) {
	b.tb.Helper()
	var last any
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		v, err := b.eval(expression)
		if v == true {
			return
		}
		if last = v; err != nil {
			last = err // of a page that is just being left, perhaps
		}
	}
	text, _ := b.eval("document.body.innerText")
	b.tb.Fatalf("%s is %v after %s; the page says:\n%v", expression, last, patience, text)
}

// Press presses and releases a key, such as "Tab", "Enter" or "a", where the focus is.
func (b *Browser) Press(key string) {
	b.tb.Helper()
	codes := map[string]int{"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40}
	down := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": codes[key]}
	switch {
	case key == "Enter":
		down["text"] = "\r"
	case len(key) == 1:
		down["text"] = key
	}
	b.call("Input.dispatchKeyEvent", down, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": codes[key]}, nil)
}

// Look sets the size of the page in pixels, and whether its user prefers dark.
func (b *Browser) Look(width, height int, dark bool) {
	b.tb.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	scheme := map[bool]string{false: "light", true: "dark"}[dark]
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]any{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Screenshot writes what is seen as PNG.
func (b *Browser) Screenshot(path string) {
	b.tb.Helper()
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err == nil {
		err = os.WriteFile(path, png, 0o600)
	}
	if err != nil {
		b.tb.Fatal(err)
	}
}

// Said is what pages wrote to the console, exceptions and refusals by a Content-Security-Policy among them.
func (b *Browser) Said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.said...)
}

// Asked are the URLs that pages asked for.
func (b *Browser) Asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.asked...)
}
