package partnertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/weir-ratelimit/weir/internal/test/launch"
	"github.com/weir-ratelimit/weir/internal/test/proctest"
)

// Browser is one page in a Chromium, with its own cookies, storage and cache.
type Browser struct {
	tb       testing.TB
	chromium *chromium
	ctx      context.Context // context of the page

	mu      sync.Mutex
	console []string
	urls    []string
}

// chromium is a running Chromium.
type chromium struct {
	ctx    context.Context // done when Chromium has ended
	stop   func()
	output launch.Buffer
}

// sharing has the Chromium that the tests of a package share.
var sharing struct {
	mu       sync.Mutex
	on       bool
	chromium *chromium // nil before the first StartBrowser
}

// Share runs the tests of a package with one common Chromium, and returns their exit code, because each start costs a
// second of CPU time. Every Browser still has its own page and storage. Call it in TestMain.
func Share(m *testing.M) (code int) {
	sharing.on = true
	defer func() {
		if c := sharing.chromium; c != nil {
			c.stop()
		}
	}()
	return m.Run()
}

// StartBrowser opens an empty page, which is closed when the test ends, in the Chromium of Share or in its own. Under
// -short it skips the test; without a Chromium it fails the test.
func StartBrowser(tb testing.TB) *Browser {
	tb.Helper()
	path := proctest.Program(tb, "chromium", "chromium-browser", "google-chrome")
	c, err := running(tb, path)
	if err != nil {
		tb.Fatal(err)
	}
	b := &Browser{tb: tb, chromium: c}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("output of Chromium:\n%s", c.output.String())
		}
	})
	ctx, cancel := chromedp.NewContext(c.ctx, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.note))
	tb.Cleanup(cancel)
	b.ctx = ctx
	defer time.AfterFunc(proctest.Patience, cancel).Stop() // a context with a timeout would later close the page
	if err := chromedp.Do(ctx); err != nil {
		tb.Fatalf("open a page in Chromium: %v", err)
	}
	return b
}

// running returns the shared Chromium, or one that ends with the test.
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
	if c := sharing.chromium; c != nil && c.ctx.Err() == nil {
		return c, nil
	}
	c, err := run(path) // also if the shared Chromium has died, so that only one test fails
	if err == nil {
		sharing.chromium = c
	}
	return c, err
}

// run starts Chromium with an empty profile. Chromium dies with this process.
func run(path string) (*chromium, error) {
	c := &chromium{}
	c.ctx, c.stop = chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.CombinedOutput(&c.output),
		chromedp.Flag("disable-gpu", true), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true)))
	defer time.AfterFunc(proctest.Patience, c.stop).Stop()
	if _, err := chromedp.Targets(c.ctx); err != nil {
		c.stop()
		return nil, fmt.Errorf("start Chromium: %w", err)
	}
	return c, nil
}

// note records an event of the console or the network.
func (b *Browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventConsoleAPICalled:
		said := []string{string(e.Type)}
		for _, arg := range e.Args {
			said = append(said, string(arg.Value)+arg.Description)
		}
		b.console = append(b.console, strings.Join(said, " "))
	case *runtime.EventExceptionThrown:
		b.console = append(b.console, (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *log.EventEntryAdded:
		b.console = append(b.console, fmt.Sprint(e.Entry.Level, ": ", e.Entry.Text, " ", e.Entry.URL))
	case *network.EventRequestWillBeSent:
		b.urls = append(b.urls, e.Request.URL)
	}
}

// do returns the result of an action. It fails the test if the action fails or takes too long.
func do[T any](b *Browser, what string, action chromedp.Action[T]) T {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, proctest.Patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		b.tb.Fatalf("%s: %v", what, err)
	}
	return v
}

// Open opens a URL and returns when the page has loaded.
func (b *Browser) Open(url string) {
	b.tb.Helper()
	do(b, url, chromedp.Navigate(url))
}

// Eval returns the value of a JavaScript expression in the page, or the result of a promise.
func (b *Browser) Eval(expression string) any {
	b.tb.Helper()
	return do(b, expression, chromedp.Evaluate[any](expression, chromedp.EvalAwaitPromise))
}

// Text is Eval for an expression whose value is a string.
func (b *Browser) Text(expression string) string {
	b.tb.Helper()
	return do(b, expression, chromedp.Evaluate[string](expression, chromedp.EvalAwaitPromise))
}

// Await waits until a JavaScript expression is true.
func (b *Browser) Await(expression string) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, proctest.Patience)
	defer cancel()
	last := any(nil)
	for began := time.Now(); ; time.Sleep(launch.Pause(began)) {
		v, err := chromedp.Run(ctx, chromedp.Evaluate[any](expression, chromedp.EvalAwaitPromise))
		switch {
		case v == true:
			return
		case ctx.Err() != nil:
			b.tb.Errorf("%s is %v after %s: %v", expression, last, proctest.Patience, err)
			b.tb.Fatalf("the page says:\n%s", b.Text("document.body.innerText"))
		case err != nil:
			last = err // the page may be changing
		default:
			last = v
		}
	}
}

// Press presses and releases a key, such as "Tab", "Enter" or "a", in the focused element.
func (b *Browser) Press(key string) {
	b.tb.Helper()
	if named, ok := map[string]string{"Tab": kb.Tab, "Enter": kb.Enter, "ArrowDown": kb.ArrowDown}[key]; ok {
		key = named
	}
	do(b, "press a key", chromedp.KeyEvent(key))
}

// Look sets the size of the page in pixels, and the user's preference for dark colours.
func (b *Browser) Look(width, height int, dark bool) {
	b.tb.Helper()
	scheme := &emulation.MediaFeature{Name: "prefers-color-scheme", Value: "light"}
	if dark {
		scheme.Value = "dark"
	}
	do(b, "size of the page", chromedp.EmulateViewport(int64(width), int64(height)))
	do(b, "colours of the page", command(emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{scheme}}))
}

// command returns the action that sends a command of the protocol.
func command[P, R any](cmd cdp.Command[P, R], params P) chromedp.Action[R] {
	return func(ctx context.Context, t *chromedp.Target) (R, error) { return cdp.Call(ctx, t, cmd, params) }
}

// Screenshot returns a picture of the window as PNG.
func (b *Browser) Screenshot() []byte {
	b.tb.Helper()
	return do(b, "screenshot", chromedp.CaptureScreenshot())
}

// Console returns the pages' console output, with exceptions and violations of a Content-Security-Policy.
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
