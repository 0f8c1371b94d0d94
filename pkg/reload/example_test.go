package reload_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/weir-ratelimit/weir/pkg/reload"
)

// The greeting stays while its file is bad.
func Example() {
	dir, err := os.MkdirTemp("", "reload-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "greeting.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			fmt.Println(err)
		}
	}

	write("hello")
	greeting, err := reload.New(reload.Options[string]{
		Source: reload.Paths(dir),
		Compile: func(files []reload.File) (string, error) {
			text := strings.TrimSpace(string(files[0].Data))
			if text == "" {
				return "", errors.New("the greeting is empty")
			}
			return text, nil
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	fmt.Println(greeting.Load(ctx), greeting.Get())
	write("")
	fmt.Println(greeting.Load(ctx), greeting.Get()) // in a server, Run does this
	write("good morning")
	fmt.Println(greeting.Load(ctx), greeting.Get())
	// Output:
	// <nil> hello
	// the greeting is empty hello
	// <nil> good morning
}

// Two folders as one source, of which one may be empty.
func ExampleJoin() {
	dir, err := os.MkdirTemp("", "reload-example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, name := range []string{"common.yaml", "extra/shop.yaml"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
			fmt.Println(err)
			return
		}
	}
	source := reload.Join(func(err error) { fmt.Println("not watched:", err) },
		reload.Paths(filepath.Join(dir, "common.yaml")),
		reload.Files{Paths: []string{filepath.Join(dir, "extra")}, EveryFile: true},
	)
	snapshot, err := source.Read(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, file := range snapshot.Files {
		fmt.Println(filepath.Base(file.Name))
	}
	// Output:
	// common.yaml
	// shop.yaml
}

// A source of your own: a table of a database, an HTTP server.
func ExampleNewSnapshot() {
	first := reload.NewSnapshot([]reload.File{{Name: "table", Data: []byte("hello")}})
	second := reload.NewSnapshot([]reload.File{{Name: "table", Data: []byte("hello")}})
	fmt.Println(reload.ShortHash(first.Hash), first.Hash == second.Hash)
	// Output: 0fbff967fa04 true
}
