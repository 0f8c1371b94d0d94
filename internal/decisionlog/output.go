package decisionlog

import (
	"errors"
	"fmt"
	"os"
)

// output is the file or stream to write to. It is for one goroutine.
type output struct {
	path    string // empty: a standard stream
	file    *os.File
	info    os.FileInfo // of file
	failing bool
	torn    bool // the last line was written only in part
}

func open(to string) (output, error) {
	switch to {
	case "stdout":
		return output{file: os.Stdout}, nil
	case "stderr":
		return output{file: os.Stderr}, nil
	}
	o := output{path: to}
	return o, o.open()
}

func (o *output) open() error {
	f, err := os.OpenFile(o.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640) //nolint:gosec // the group collects logs
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory; write the path of a file, stdout or stderr", o.path)
	}
	if err != nil {
		return errors.Join(err, f.Close())
	}
	o.file, o.info = f, info
	return nil
}

// follow opens the file again if another file, or none, has its name, as after logrotate.
func (o *output) follow() error {
	if o.path == "" {
		return nil
	}
	if now, err := os.Stat(o.path); o.file != nil && err == nil && os.SameFile(now, o.info) {
		return nil
	}
	if o.file != nil {
		o.file.Close() //nolint:errcheck,gosec // every write has reported its error
		o.file = nil
	}
	return o.open()
}

// write writes whole lines, and begins a new one if the last was cut off by a full disk.
func (o *output) write(lines []byte) error {
	err := o.follow()
	if err == nil && o.torn {
		_, err = o.file.WriteString("\n")
	}
	if err == nil {
		var n int
		n, err = o.file.Write(lines)
		o.torn = n > 0 && lines[n-1] != '\n'
	}
	o.failing = err != nil
	return err
}

func (o *output) close() {
	if o.path != "" && o.file != nil {
		o.file.Close() //nolint:errcheck,gosec // every write has reported its error
	}
}
