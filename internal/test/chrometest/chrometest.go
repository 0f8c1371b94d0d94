// Package chrometest runs a real Chromium without a window for a test. It speaks the DevTools protocol over a pipe,
// which needs neither a port nor a websocket library (ADR 0054).
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
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// Browser is a running Chromium with one page.
type Browser struct {
	tb      testing.TB
	session string // of the page

	mu      sync.Mutex
	in      io.Writer
	id      int
	answers map[int]chan message // by the ID of the command
	err     error                // why nothing more is read
	console []string
	urls    []string
}

// message is one message of the protocol: an answer has an ID, an event has a Method.
type message struct {
	ID        int    `json:"id,omitempty"`
	SessionID string `json:"sessionId,omitempty"`
	Method    string `json:"method,omitempty"`
	Params    any    `json:"params,omitempty"`

	Result json.RawMessage           `json:"result,omitempty"`
	Error  *struct{ Message string } `json:"error,omitempty"`
}

// Start runs Chromium until the test ends. Under -short it skips the test; without a Chromium it fails the test.
func Start(tb testing.TB) *Browser {
	tb.Helper()
	path := proctest.Program(tb, "chromium", "chromium-browser", "google-chrome")
	toBrowser, in := pipe(tb)
	out, fromBrowser := pipe(tb)
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
		"--disable-dev-shm-usage", "--force-color-profile=srgb", "--hide-scrollbars", "--user-data-dir="+tb.TempDir(),
		"--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // descriptors 3 and 4, as the protocol wants
	process := proctest.Start(tb, "Chromium", cmd)
	b := &Browser{tb: tb, in: in, answers: map[int]chan message{}}
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
		process.Kill()
		_ = in.Close()
		_ = out.Close()
		<-read
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
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

// read reads messages, each of which ends in a zero byte, until the pipe is closed.
func (b *Browser) read(out io.Reader) {
	for r := bufio.NewReader(out); ; {
		text, err := r.ReadBytes(0)
		var m struct {
			message
			Params json.RawMessage `json:"params"`
		}
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		b.mu.Lock()
		if b.err = err; err != nil {
			for _, answer := range b.answers {
				close(answer)
			}
			b.mu.Unlock()
			return
		}
		if answer := b.answers[m.ID]; answer != nil {
			delete(b.answers, m.ID)
			answer <- m.message
		}
		var e event
		if json.Unmarshal(m.Params, &e) == nil { // of most events it is something else
			b.note(m.Method, &e)
		}
		b.mu.Unlock()
	}
}

// event has what is kept of any event.
type event struct {
	Type    string
	Args    []struct{ Value, Description any }
	Request struct{ URL string }
	Entry   struct{ Level, Text, URL string }
	Details struct {
		Exception struct{ Description string } `json:"exception"`
	} `json:"exceptionDetails"`
}

// note keeps an event of the console or the network.
func (b *Browser) note(method string, e *event) {
	switch method {
	case "Runtime.consoleAPICalled":
		b.console = append(b.console, fmt.Sprint(e.Type, e.Args))
	case "Runtime.exceptionThrown":
		b.console = append(b.console, e.Details.Exception.Description)
	case "Log.entryAdded":
		b.console = append(b.console, fmt.Sprint(e.Entry.Level, ": ", e.Entry.Text, " ", e.Entry.URL))
	case "Network.requestWillBeSent":
		b.urls = append(b.urls, e.Request.URL)
	}
}

// call sends a command and decodes its result, unless that is nil.
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
			return errors.New("the browser has ended")
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
	text, err := json.Marshal(message{ID: b.id, SessionID: b.session, Method: method, Params: params})
	if err != nil {
		return err
	}
	b.answers[b.id] = answer
	_, err = b.in.Write(append(text, 0))
	return err
}

// Open goes to a URL and returns when the page has loaded.
func (b *Browser) Open(url string) {
	b.tb.Helper()
	var result struct{ ErrorText string }
	b.call("Page.navigate", map[string]any{"url": url}, &result)
	if result.ErrorText != "" {
		b.tb.Fatalf("%s: %s", url, result.ErrorText)
	}
	b.Await("document.readyState === 'complete' && location.href !== 'about:blank'")
}

// Eval returns the value of a JavaScript expression in the page; of a promise, what it resolves to.
func (b *Browser) Eval(expression string) any {
	b.tb.Helper()
	v, err := b.eval(expression)
	if err != nil {
		b.tb.Fatalf("%s: %v", expression, err)
	}
	return v
}

// Text is Eval of an expression whose value is a string.
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
	params := map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}
	err := b.tryCall("Runtime.evaluate", params, &answer)
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
			last = err // the page may be changing
		}
	}
	text, _ := b.eval("document.body.innerText")
	b.tb.Fatalf("%s is %v after %s; the page says:\n%v", expression, last, patience, text)
}

// Press presses and releases a key, such as "Tab", "Enter" or "a", where the focus is.
func (b *Browser) Press(key string) {
	b.tb.Helper()
	code := map[string]int{"Tab": 9, "Enter": 13, " ": 32, "ArrowDown": 40}[key]
	down := map[string]any{"type": "keyDown", "key": key, "windowsVirtualKeyCode": code}
	switch {
	case key == "Enter":
		down["text"] = "\r"
	case len(key) == 1:
		down["text"] = key
	}
	b.call("Input.dispatchKeyEvent", down, nil)
	b.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "windowsVirtualKeyCode": code}, nil)
}

// Look sets the size of the page in pixels, and whether its user prefers dark colours.
func (b *Browser) Look(width, height int, dark bool) {
	b.tb.Helper()
	size := map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}
	b.call("Emulation.setDeviceMetricsOverride", size, nil)
	scheme := map[string]any{"name": "prefers-color-scheme", "value": map[bool]string{false: "light", true: "dark"}[dark]}
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{scheme}}, nil)
}

// Node is what assistive software sees of a part of the page.
type Node struct{ Role, Name string }

// Accessibility returns Chromium's accessibility tree, in the order in which it is read.
func (b *Browser) Accessibility() (nodes []Node) {
	b.tb.Helper()
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name struct{ Value any }
		}
	}
	b.call("Accessibility.getFullAXTree", nil, &tree)
	for _, n := range tree.Nodes {
		if role, ok := n.Role.Value.(string); ok && !n.Ignored {
			name, _ := n.Name.Value.(string) // none is ""
			nodes = append(nodes, Node{role, name})
		}
	}
	return nodes
}

// Screenshot writes a picture of the page as PNG.
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

// Console returns what pages wrote to the console, with exceptions and violations of a Content-Security-Policy.
func (b *Browser) Console() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.console)
}

// URLs returns the URLs that pages requested.
func (b *Browser) URLs() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.urls)
}
