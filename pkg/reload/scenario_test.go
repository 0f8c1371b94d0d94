package reload_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// TestScenarios plays testdata/scenarios/*.txt. The README.md there says what a file contains.
func TestScenarios(t *testing.T) {
	casetest.Scenarios(t, func(t *testing.T, s *casetest.Scenario) {
		if strings.HasPrefix(s.Text, "# Virtual time.") {
			synctest.Test(t, func(t *testing.T) {
				p := &player{T: t}
				s.Play(t, p.inVirtualTime, "start CONTENT ...", "source ...", "source-fails ...", "source-next ...",
					"hint", "run", "wait TIME", "load ...", "print")
			})
			return
		}
		t.Chdir(t.TempDir())
		here, err := os.Getwd()
		must(t, err)
		p := &player{T: t, events: make(chan reload.Event, 1000)}
		s.Play(t, func(c casetest.Command) string { return strings.ReplaceAll(p.withFiles(c), here, "DIR") },
			"write FILE ...", "files FILE ...", "replace FILE ...", "rename FILE FILE", "remove FILE ...",
			"link FILE FILE", "mkdir FOLDER", "pipe FILE", "large FILE", "touch FILE", "configmap FOLDER VERSION ...",
			"read ...", "start ...", "live ...")
	})
}

// player plays one scenario, with a source in memory and virtual time, or with files.
type player struct {
	*testing.T

	r      *reload.Reloader[string]
	memory *memory
	log    log // of events with a source in memory

	files  reload.Files
	events chan reload.Event
	state  string // of the files at the last live: their hash, or what is wrong
	end    func()
}

// restart replaces the Reloader.
func (p *player) restart(o reload.Options[string]) {
	if p.end != nil {
		p.end()
	}
	var err error
	o.Compile = compile
	p.r, err = reload.New(o)
	must(p.T, err)
	p.end = nil
}

// run runs the Reloader until the next restart, or the end of the scenario.
func (p *player) run() {
	ctx, cancel := context.WithCancel(p.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.r.Run(ctx) }()
	p.end = func() {
		if cancel(); ended != nil {
			must(p.T, <-ended)
			ended = nil
		}
	}
	p.Cleanup(p.end)
}

func (p *player) inVirtualTime(c casetest.Command) string {
	text := strings.Join(c.Args, " ")
	var answer string
	switch c.Name {
	case "start":
		p.memory = &memory{content: c.Args[0]}
		o := reload.Options[string]{Sources: []reload.Source{p.memory}, OnLoad: p.log.add}
		if len(c.Args) > 1 {
			o.Poll = casetest.Parsed(c, time.ParseDuration, strings.TrimPrefix(c.Args[1], "poll="))
		}
		p.restart(o)
	case "source":
		p.memory.set(text, nil)
	case "source-fails":
		p.memory.set("", errors.New(text))
	case "source-next":
		p.memory.mu.Lock()
		p.memory.next = strings.Split(text, " | ")
		p.memory.mu.Unlock()
	case "hint":
		p.memory.hint()
	case "run":
		if p.end == nil {
			p.run()
		} else {
			answer = fmt.Sprintln(p.r.Run(p.Context()))
		}
	case "wait":
		time.Sleep(casetest.Parsed(c, time.ParseDuration, c.Args[0]))
	case "load":
		if text == "&" {
			go func() { _ = p.r.Load(p.Context()) }()
			break
		}
		within := time.Hour
		if text != "" {
			within = casetest.Parsed(c, time.ParseDuration, strings.TrimPrefix(text, "within="))
		}
		ctx, cancel := context.WithTimeout(p.Context(), within)
		defer cancel()
		start := time.Now()
		err := p.r.Load(ctx)
		answer = fmt.Sprintf("%v, after %s\n", err, time.Since(start))
	case "print":
		s := p.r.Status()
		answer = fmt.Sprintf("%d loads, %d refused, %d reads\n", s.Loads, s.Refused, p.memory.count())
		if s.Loads > 0 {
			answer += fmt.Sprintf("%d files, hash %.12s, for %s\n", s.Files, s.Hash, time.Since(s.LoadedAt))
		}
		if s.Err != nil || !s.ErrAt.IsZero() {
			answer += fmt.Sprintf("for %s: %v\n", time.Since(s.ErrAt), s.Err)
		}
	}
	synctest.Wait()
	if lines := p.log.take(); len(lines) > 0 {
		answer += strings.Join(lines, "\n") + "\n"
	}
	if since := p.r.Status().Loading; !since.IsZero() {
		answer += fmt.Sprintf("loading for %s\n", time.Since(since))
	}
	if c.Name == "wait" || c.Name == "load" {
		answer += "live: " + p.r.Get() + "\n"
	}
	return answer
}

func (p *player) withFiles(c casetest.Command) string {
	args := c.Args
	text := func() string { return strings.Join(args[1:], " ") }
	switch c.Name {
	case "write": // in place
		write(p.T, args[0], text())
	case "files": // each with its path as content
		for _, path := range args {
			write(p.T, path, path)
		}
	case "replace": // as careful editors do
		write(p.T, args[0]+".tmp", text())
		must(p.T, os.Rename(args[0]+".tmp", args[0]))
	case "rename":
		must(p.T, os.Rename(args[0], args[1]))
	case "remove":
		for _, path := range args {
			must(p.T, os.RemoveAll(path))
		}
	case "link":
		must(p.T, os.MkdirAll(filepath.Dir(args[0]), 0o755), os.RemoveAll(args[0]), os.Symlink(args[1], args[0]))
	case "mkdir":
		must(p.T, os.MkdirAll(args[0], 0o755))
	case "pipe":
		must(p.T, syscall.Mkfifo(args[0], 0o644))
	case "large":
		must(p.T, os.WriteFile(args[0], nil, 0o644), os.Truncate(args[0], reload.DefaultMaxSize+1))
	case "touch":
		must(p.T, os.Chtimes(args[0], time.Now(), time.Now()))
	case "configmap":
		files := map[string]string{}
		for _, file := range args[2:] {
			name, content, _ := strings.Cut(file, "=")
			files[name] = strings.ReplaceAll(content, "~", " ")
		}
		configMap(p.T, args[0], args[1], files)
	case "read":
		return p.read(c)
	case "start":
		p.files, _ = source(p.Context(), args)
		p.restart(reload.Options[string]{
			Sources: []reload.Source{p.files}, Poll: time.Hour, OnLoad: func(e reload.Event) { p.events <- e },
		})
		must(p.T, p.r.Load(p.Context()))
		p.state = (<-p.events).Hash
		p.run()
		return p.r.Get() + "\n"
	case "live":
		return p.live(c)
	}
	return ""
}

// including reads the files that lines such as "values_file: name" refer to.
func including(f reload.File) (all []reload.Include) {
	number := 0
	for line := range strings.Lines(string(f.Data)) {
		number++
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "values_file: "); ok {
			all = append(all, reload.Include{
				Name: filepath.Join(filepath.Dir(f.Name), name),
				At:   fmt.Sprintf("%s:%d", f.Name, number),
			})
		}
	}
	return all
}

// source makes a source of options and paths.
func source(ctx context.Context, words []string) (from reload.Files, _ context.Context) {
	for _, word := range words {
		prefix, hasPrefix := strings.CutPrefix(word, "prefix=")
		switch {
		case word == "includes":
			from.Includes = including
		case word == "every_file":
			from.EveryFile = true
		case hasPrefix:
			from.Prefix = prefix
		case word == "absent", word == "not_absent":
			from.Absent = func() bool { return word == "absent" }
		case word == "cancelled":
			ended, cancel := context.WithCancel(ctx)
			cancel()
			ctx = ended
		default:
			from.Paths = append(from.Paths, word)
		}
	}
	return from, ctx
}

// read returns the names of the files that one Read of a source returns, or its error.
func (p *player) read(c casetest.Command) string {
	from, ctx := source(p.Context(), c.Args)
	got, err := from.Read(ctx)
	if err != nil {
		return fmt.Sprintf("error: %v\n", err)
	}
	if got.Hash != reload.NewSnapshot(got.Files).Hash {
		c.Fatalf("the hash is not that of the files")
	}
	var out strings.Builder
	for _, f := range got.Files {
		fmt.Fprintln(&out, f.Name)
	}
	return out.String()
}

// live waits until the Reloader has loaded or refused what the files contain now, by its watch alone: there is no poll.
// Loads on the way there are right too, as some edits are several, but not after the word once. If the files are as
// they were, a request to load finds nothing to do.
func (p *player) live(c casetest.Command) string {
	want, err := p.files.Read(p.Context())
	state := want.Hash
	if err == nil {
		_, err = compile(p.Context(), want.Files)
	}
	if err != nil {
		state = err.Error()
	}
	answer := ""
	if state == p.state {
		if _ = p.r.Load(p.Context()); len(p.events) > 0 {
			c.Fatalf("an event for nothing: %+v", <-p.events)
		}
		answer = "unchanged\n"
	}
	for deadline := time.After(time.Minute); state != p.state; {
		select {
		case e := <-p.events:
			if p.state = e.Hash; e.Err != nil {
				p.state = e.Err.Error()
			}
			if e.Reason != reload.ReasonWatch || len(c.Args) > 0 && state != p.state {
				c.Fatalf("%+v", e)
			}
		case <-deadline:
			c.Fatalf("a minute after the edit, %q is live, %v", p.r.Get(), p.r.Status().Err)
		}
	}
	if answer += p.r.Get() + "\n"; err != nil {
		answer += "refused: " + err.Error() + "\n"
	}
	return answer
}
