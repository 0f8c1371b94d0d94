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

// The greeting stays live while its file is invalid.
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
		Sources: []reload.Source{reload.Paths(dir)},
		Compile: func(_ context.Context, files []reload.File) (string, error) {
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

// A Source can read anything, such as a table of a database or an HTTP server.
func ExampleNewSnapshot() {
	first := reload.NewSnapshot([]reload.File{{Name: "table", Data: []byte("hello")}})
	second := reload.NewSnapshot([]reload.File{{Name: "table", Data: []byte("hello")}})
	fmt.Println(reload.ShortHash(first.Hash), first.Hash == second.Hash)
	// Output: 0fbff967fa04 true
}
