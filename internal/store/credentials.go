package store

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-ratelimit/weir/internal/fileread"
)

const (
	// filesAgain is the interval at which files are read; commandAgain is the interval at which a command runs whose
	// answer does not expire.
	filesAgain, commandAgain = time.Second, 5 * time.Minute
	// commandWait bounds each run of a command, the pause after its failures, and how often an equal failure is logged.
	commandWait = 30 * time.Second
	// commandMost is the maximum number of bytes that a command may print to each of standard output and error.
	commandMost = 64 << 10
	// filesPause bounds the pause after failures of files, so that a file is used soon after it is corrected.
	filesPause = 2 * time.Second
)

// credentials are the user and the password of a URL, which may change. Methods are safe for concurrent use, except
// start and run.
type credentials struct {
	user, password             string
	usernameFile, passwordFile string
	command                    []string // a program and its arguments

	current  atomic.Pointer[login] // never nil
	refused  chan string           // error replies to AUTH that run has not read yet
	failures atomic.Uint64
}

// login is a user and a password. It is immutable. Its exported fields are the answer of a command.
type login struct {
	Username, Password string
	Expires            expiry // zero: unknown
	problem            error  // credentialsError until there is a password
}

// credentialsError says why there is no password yet. It has no Unwrap, because go-redis would return the result.
type credentialsError struct{ error }

func newCredentials() *credentials {
	c := &credentials{refused: make(chan string, 1)}
	c.current.Store(&login{problem: credentialsError{errors.New("user and password are not read yet")}})
	return c
}

// change reports whether the user or the password may change.
func (c *credentials) change() bool { return c.usernameFile+c.passwordFile != "" || len(c.command) > 0 }

// start reads the credentials, unless another client has. A command may succeed later, so only calls return its error.
func (c *credentials) start(ctx context.Context) error {
	if c.current.Load().problem != nil {
		if err := c.renew(ctx, false); len(c.command) == 0 {
			return err
		}
	}
	return nil
}

// provide is go-redis's CredentialsProviderContext.
func (c *credentials) provide(context.Context) (user, password string, err error) {
	l := c.current.Load()
	return l.Username, l.Password, l.problem
}

// run renews the credentials until ctx is done. After a failure or a refusal by Redis, it pauses for 1 to 30 s, or 2 s
// if there is no command.
func (c *credentials) run(ctx context.Context, log *slog.Logger) {
	var err error
	var last time.Time // time of the last failure
	var logged string  // last failure that was logged
	var loggedAt time.Time
	longest := commandWait
	if len(c.command) == 0 {
		longest = filesPause
	}
	for failed := 0; ; {
		wait, refused := c.again(), c.refused
		if err != nil {
			wait, refused = min(time.Second<<failed, longest), nil
		}
		select {
		case <-ctx.Done():
			return
		case why := <-refused:
			err = errors.New("Redis refuses them: " + why)
		case <-time.After(wait):
			err = c.renew(ctx, err != nil)
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		if failed = min(failed+1, 5); time.Since(last) > commandAgain {
			failed = 0
		}
		last = time.Now()
		c.failures.Add(1)
		if err.Error() == logged && time.Since(loggedAt) < commandWait {
			continue
		}
		logged, loggedAt = err.Error(), time.Now()
		log.LogAttrs(ctx, slog.LevelWarn, "credentials of Redis cannot be renewed; the last ones, if any, remain in use",
			slog.String("error", err.Error()), slog.String("stderr", firstLine(err)))
	}
}

// firstLine returns the first line of what a failed command has written to standard error.
func firstLine(err error) string {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		line, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		return line
	}
	return ""
}

// again returns the time after which to renew: four fifths of the time until the credentials expire.
func (c *credentials) again() time.Duration {
	l := c.current.Load()
	switch left := time.Until(l.Expires.Time); {
	case len(c.command) == 0 || l.problem != nil:
		return filesAgain
	case l.Expires.IsZero():
		return commandAgain
	case left <= 0: // a clock is wrong
		return commandWait
	default:
		return max(time.Second, left*4/5)
	}
}

// renew reads the files or runs the command. If retry is set, connections try the result again even if it is the same.
// The error has no part of a secret.
func (c *credentials) renew(ctx context.Context, retry bool) error {
	user, err := readSecret(ctx, "username_file", c.usernameFile, c.user)
	next := &login{Username: user, Password: c.password}
	switch {
	case err != nil:
	case len(c.command) > 0:
		err = c.runCommand(ctx, next)
	default:
		next.Password, err = readSecret(ctx, "password_file", c.passwordFile, c.password)
	}
	switch old := c.current.Load(); {
	case err == nil && (retry || *next != *old):
		c.current.Store(next)
	case err != nil && old.problem != nil:
		c.current.Store(&login{problem: credentialsError{err}})
	}
	return err
}

// readSecret returns the text of an option's file, or instead if the option has no path.
func readSecret(ctx context.Context, option, path, instead string) (string, error) {
	if path == "" {
		return instead, nil
	}
	data, err := fileread.ReadFile(ctx, path)
	text := strings.TrimRight(string(data), "\r\n")
	if at := new(fs.PathError); errors.As(err, &at) { // the text in place of the path may be the password
		err = at.Err
	} else if err == nil && text == "" {
		err = errors.New("the file is empty")
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w; write the path of a file that Weir can read", option, err)
	}
	return text, nil
}

// runCommand runs the command and sets what it prints. If it fails, its children end, too.
func (c *credentials) runCommand(ctx context.Context, to *login) error {
	ctx, cancel := context.WithTimeout(ctx, commandWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.command[0], c.command[1:]...) //nolint:gosec // the operator has given the command
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // with its children
	cmd.WaitDelay = time.Second
	var out, errs bounded
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil && cmd.Process != nil {
		_ = cmd.Cancel() // the program may have left children
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		exit.Stderr = errs
	}
	switch {
	case max(len(out), len(errs)) > commandMost:
		err = errors.New("it prints more than 64 KiB; let it print only the password, or JSON")
	case ctx.Err() != nil:
		err = fmt.Errorf("it takes longer than %s", commandWait)
	case err == nil:
		err = to.parse(out)
	}
	if err != nil { // errors of exec and os wrap the reason and add the program
		return fmt.Errorf("password_command: %w", cmp.Or(errors.Unwrap(err), err))
	}
	return nil
}

// bounded keeps what a command prints. A Write that exceeds commandMost returns an error, which closes the pipe.
type bounded []byte

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if *b = append(*b, p[:min(len(p), commandMost+1-len(*b))]...); len(*b) > commandMost {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// parse parses a command's output: a password in the first line, or JSON. Errors quote none of it.
func (l *login) parse(out []byte) error {
	if !bytes.HasPrefix(bytes.TrimSpace(out), []byte("{")) {
		line, _, _ := strings.Cut(string(out), "\n")
		l.Password = strings.TrimSuffix(line, "\r")
	} else if json.Unmarshal(out, l) != nil {
		return errors.New(`it prints wrong JSON; write {"username": "...", "password": "...", "expires": "..."}`)
	}
	if l.Password == "" {
		return errors.New("it prints no password")
	}
	return nil
}

// expiry is a time. In JSON it is in Unix seconds or RFC 3339.
type expiry struct{ time.Time }

// UnmarshalJSON implements json.Unmarshaler.
func (e *expiry) UnmarshalJSON(data []byte) error {
	seconds, err := strconv.ParseInt(strings.Trim(string(data), `"`), 10, 64)
	if err != nil {
		return e.Time.UnmarshalJSON(data)
	}
	e.Time = time.Unix(seconds, 0)
	return nil
}
