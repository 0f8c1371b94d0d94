package fileread_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
func ExampleDo() {
	size, err := fileread.Do(context.Background(), fileread.Default, func(s *fileread.Session) (int64, error) {
		_, info, err := s.Resolve(os.DevNull, nil)
		if err != nil {
			return 0, err
		}
		return info.Size(), nil
	})
	fmt.Println(size, err)
	_, err = fileread.Do(context.Background(), fileread.Default, func(s *fileread.Session) (fs.FileInfo, error) {
		return s.Lstat("/no/such/file", "file")
	})
	fmt.Println(err)
	// Output:
	// 0 <nil>
	// lstat file: no such file or directory
}
