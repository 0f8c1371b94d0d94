package fileread_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weir-ratelimit/weir/pkg/fileread"
)

func ExampleReadFile() {
	path := filepath.Join(os.TempDir(), "fileread-example")
	if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.Remove(path) }()
	text, err := fileread.ReadFile(context.Background(), path)
	var hung *fileread.HungError
	switch {
	case errors.As(err, &hung):
		fmt.Println("the file system hangs since", hung.Since)
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println(string(text))
	}
	// Output: secret
}

// Each step makes one system call that may hang.
func ExampleStep() {
	size, err := fileread.Step(context.Background(), fileread.Default, os.DevNull, nil, func() (int64, error) {
		info, err := os.Stat(os.DevNull)
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	})
	fmt.Println(size, err)
	_, err = fileread.Default.Lstat(context.Background(), "/no/such/file", "file")
	fmt.Println(err)
	// Output:
	// 0 <nil>
	// lstat file: no such file or directory
}
