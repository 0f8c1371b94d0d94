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

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// patience is how long anything may take on a busy machine.
const patience = time.Minute

// Browser is one page in a Chromium, with cookies, storage and a cache of its own.
type Browser struct {
	tb       testing.TB
	chromium *chromium
	session  string // of the page

	mu      sync.Mutex
	console []string
	urls    []string
}

// chromium is a running Chromium.
type chromium struct {
	process *launch.Process
	read    chan struct{} // closed when nothing more is read
	dir     string        // what it writes

	mu      sync.Mutex
	in      io.Writer
	id      int
	answers map[int]chan message // by the ID of the command
	pages   map[string]*Browser  // by session
	err     error                // why nothing more is read
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

// sharing has the Chromium that the tests of a package share.
var sharing struct {
	mu       sync.Mutex
	on       bool
	chromium *chromium // nil before the first Start
}

// Share runs the tests of a package, which share one Chromium, and returns their exit code: a start costs a second of
// CPU time. Every Browser still has a page and storage of its own. Call it in TestMain.
func Share(m *testing.M) (code int) {
	sharing.on = true
	defer func() {
		if c := sharing.chromium; c != nil {
			c.stop()
		}
	}()
	return m.Run()
}

// Start opens an empty page, which is closed when the test ends. It runs a Chromium for that, or uses the one of Share.
// Under -short it skips the test; without a Chromium it fails the test.
func Start(tb testing.TB) *Browser {
	tb.Helper()
	path := proctest.Program(tb, "chromium", "chromium-browser", "google-chrome")
	c, err := running(tb, path)
	if err != nil {
		tb.Fatal(err)
	}
	b := &Browser{tb: tb, chromium: c}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("output of Chromium:\n%s", c.process.Output())
		}
	})
	var storage struct {
		ID string `json:"browserContextId"`
	}
	b.call("Target.createBrowserContext", nil, &storage)
	tb.Cleanup(func() { _ = b.tryCall("", "Target.disposeBrowserContext", storage, nil) }) // which closes the page
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{
		"url": "about:blank", "browserContextId": storage.ID, "newWindow": true,
	}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	c.mu.Lock()
	c.pages[b.session] = b
	c.mu.Unlock()
	tb.Cleanup(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.pages, b.session)
	})
	for _, domain := range []string{"Page", "Runtime", "Network", "Log"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// running returns the Chromium that tests share, or else one that ends with the test.
func running(tb testing.TB, path string) (*chromium, error) {
	tb.Helper()
	if !sharing.on {
		c, err := run(path)
		if err == nil {
			tb.Cleanup(c.stop)
		}
		return c, err
	}
	sharing.mu.Lock()
	defer sharing.mu.Unlock()
	if c := sharing.chromium; c != nil {
		select {
		case <-c.process.Exited(): // one test fails by that, and not all that follow
			c.stop()
			sharing.chromium = nil
		default:
			return c, nil
		}
	}
	c, err := run(path)
	if err == nil {
		sharing.chromium = c
	}
	return c, err
}

// run starts Chromium.
func run(path string) (*chromium, error) {
	dir, err := os.MkdirTemp("", "chrometest")
	if err != nil {
		return nil, err
	}
	toBrowser, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, fromBrowser, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
		"--disable-dev-shm-usage", "--force-color-profile=srgb", "--hide-scrollbars", "--user-data-dir="+dir,
		"--remote-debugging-pipe")
	cmd.ExtraFiles = []*os.File{toBrowser, fromBrowser} // descriptors 3 and 4, as the protocol wants
	process, err := launch.Start("Chromium", cmd)
	for _, f := range cmd.ExtraFiles {
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, err
	}
	c := &chromium{
		process: process, read: make(chan struct{}), dir: dir, in: in, answers: map[int]chan message{},
		pages: map[string]*Browser{},
	}
	go func() {
		defer close(c.read)
		c.readAll(out)
		_ = in.Close()
		_ = out.Close()
	}()
	return c, nil
}

// stop kills Chromium and returns when it is gone.
func (c *chromium) stop() {
	c.process.Kill()
	<-c.read
	for range 100 { // its other processes end by themselves, and may write until then
		if os.RemoveAll(c.dir) == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// readAll reads messages, each of which ends in a zero byte, until the pipe is closed.
func (c *chromium) readAll(out io.Reader) {
	for r := bufio.NewReader(out); ; {
		text, err := r.ReadBytes(0)
		var m struct {
			message
			Params json.RawMessage `json:"params"`
		}
		if err == nil {
			err = json.Unmarshal(text[:len(text)-1], &m)
		}
		c.mu.Lock()
		if c.err = err; err != nil {
			for _, answer := range c.answers {
				close(answer)
			}
			c.mu.Unlock()
			return
		}
		if answer := c.answers[m.ID]; answer != nil {
			delete(c.answers, m.ID)
			answer <- m.message
		}
		page := c.pages[m.SessionID]
		c.mu.Unlock()
		var e event
		if page != nil && json.Unmarshal(m.Params, &e) == nil { // of most events it is something else
			page.note(m.Method, &e)
		}
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
	b.mu.Lock()
	defer b.mu.Unlock()
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
	if err := b.tryCall(b.session, method, params, result); err != nil {
		b.tb.Fatalf("%s: %v", method, err)
	}
}

// tryCall is call in a session, "" is that of the whole Chromium.
func (b *Browser) tryCall(session, method string, params, result any) error {
	answer := make(chan message, 1)
	if err := b.chromium.send(session, method, params, answer); err != nil {
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

func (c *chromium) send(session, method string, params any, answer chan message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	c.id++
	text, err := json.Marshal(message{ID: c.id, SessionID: session, Method: method, Params: params})
	if err != nil {
		return err
	}
	c.answers[c.id] = answer
	_, err = c.in.Write(append(text, 0))
	return err
}

// PID returns the number of the Chromium's main process.
func (b *Browser) PID() int { return b.chromium.process.PID() }

// Exited is closed when the Chromium has ended.
func (b *Browser) Exited() <-chan struct{} { return b.chromium.process.Exited() }

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
	err := b.tryCall(b.session, "Runtime.evaluate", params, &answer)
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
