package rules

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed" // the script
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
	"github.com/weir-ratelimit/weir/pkg/reload"
)

// Bounds of a set of published rules.
const (
	// MaxPublishedBytes is the maximum size of all files together, in bytes: about sixty thousand rules.
	MaxPublishedBytes = 8 << 20
	// MaxPublishedStored is the maximum compressed size in bytes. Copying a set blocks Redis: 137 ms for 8 MiB.
	MaxPublishedStored = 1 << 20
	// MaxPublishedFiles is the maximum number of files.
	MaxPublishedFiles = 10_000
	// maxAuthor is the maximum length of the author, in bytes.
	maxAuthor = 200
)

//go:embed publish.lua
var publishText string

var publish = redis.NewScript(publishText)

// Errors of the current set. Publish can replace a damaged set.
var (
	ErrNothingPublished = errors.New("no rules are published; publish some with weir publish")
	ErrDamaged          = errors.New("the published rules are damaged")
)

// PublishedInfo describes a set.
type PublishedInfo struct {
	Version     uint64    `json:"version"`
	Hash        string    `json:"hash"` // hash of the names and contents of the files
	Author      string    `json:"author"`
	PublishedAt time.Time `json:"published_at"` // by the publisher's clock
	Files       int       `json:"files"`
	Bytes       int       `json:"bytes"`
}

// PublishedSet has the files of one version. Their names are relative to the published folder.
type PublishedSet struct {
	PublishedInfo

	Files []reload.File
}

// NewPublishedSet returns a set for Publish, which sets its Version. It returns an error if the files exceed the bounds
// or are not UTF-8, or if the author is invalid.
func NewPublishedSet(files []reload.File, author string, at time.Time) (*PublishedSet, error) {
	size := 0
	for _, f := range files {
		size += len(f.Data)
		if !utf8.Valid(f.Data) {
			return nil, fmt.Errorf("%s: is not UTF-8", f.Name)
		}
	}
	switch {
	case len(files) == 0:
		return nil, errors.New("there are no files to publish")
	case len(files) > MaxPublishedFiles:
		return nil, fmt.Errorf("there are %d files, at most %d can be published; join some", len(files),
			MaxPublishedFiles)
	case size > MaxPublishedBytes:
		return nil, fmt.Errorf("the files have %d bytes, at most %d (%d MiB) can be published", size, MaxPublishedBytes,
			MaxPublishedBytes>>20)
	case author == "" || len(author) > maxAuthor || strings.ContainsFunc(author, func(r rune) bool { return r < ' ' }):
		return nil, fmt.Errorf("the author must have 1 to %d bytes and no control characters, got %q", maxAuthor, author)
	}
	return &PublishedSet{
		PublishedInfo: PublishedInfo{
			Hash: reload.NewSnapshot(files).Hash, Author: author, PublishedAt: at.UTC().Truncate(time.Second),
			Files: len(files), Bytes: size,
		},
		Files: files,
	}, nil
}

// Named returns the files under the names that processes use: store:NAME@VERSION.
func (s *PublishedSet) Named() []reload.File {
	named := make([]reload.File, len(s.Files))
	for i, f := range s.Files {
		named[i] = reload.File{Name: fmt.Sprintf("store:%s@%d", f.Name, s.Version), Data: f.Data}
	}
	return named
}

// Published reads and writes the rule files in Redis, so that all replicas have the same rules. It is safe for
// concurrent use. One hash, PREFIX1:rules, holds the current set, so that the set is in one slot of a cluster and
// changes atomically:
//
//	current    "VERSION HASH" of the set
//	info       PublishedInfo of the set, in JSON
//	files      files of the set, in JSON, compressed with gzip
//
// Each version is one more than the last. The hash never expires; it is the only key of Weir without a time to live.
type Published struct {
	redis *store.Redis
	key   string // of the hash, and channel for its changes
}

// NewPublished returns the published rules on r, which must be connected for commands (store.ConnectForCommand),
// because a set may have MaxPublishedBytes. It does not connect.
func NewPublished(r *store.Redis) *Published { return &Published{r, r.Prefix() + "rules"} }

// String returns the names of the hash and the server, without user and password.
func (s *Published) String() string { return s.key + " in " + s.redis.String() }

// callError means that Redis could not be queried or returned an error, so that the content of Redis is unknown.
type callError struct{ error }

// Unwrap returns the wrapped error, for errors.As.
func (e callError) Unwrap() error { return e.error }

// failed returns a callError that names the server.
func (s *Published) failed(doing string, err error) error {
	return callError{fmt.Errorf("%s %s: %w", doing, s.redis, err)}
}

// mark returns the value of `current`: "VERSION HASH", or the invalid value that Redis has in this field.
func (i *PublishedInfo) mark() string {
	if i.Version == 0 {
		return i.Hash
	}
	return strconv.FormatUint(i.Version, 10) + " " + i.Hash
}

// infoOf parses a mark. If the mark is invalid, Version is 0 and Hash is the mark.
func infoOf(mark string) PublishedInfo {
	version, hash, _ := strings.Cut(mark, " ")
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil || n == 0 {
		return PublishedInfo{Hash: mark}
	}
	return PublishedInfo{Version: n, Hash: hash}
}

// query returns the result of a command. A missing key or field is not an error. The error is a callError.
func query[T any](s *Published, command interface{ Result() (T, error) }) (answer T, err error) {
	answer, err = command.Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return answer, s.failed("read the rules in", err)
	}
	return answer, nil
}

// Current returns the current set. The error wraps ErrNothingPublished if there is none, and ErrDamaged if the set
// cannot be decoded. With these two errors, the returned set can be passed to Publish as saw.
func (s *Published) Current(ctx context.Context) (*PublishedSet, error) {
	fields, err := query(s, s.redis.Client.HMGet(ctx, s.key, "current", "info", "files"))
	if err != nil {
		return nil, err
	}
	var texts [3]string // empty for a missing field
	for i, f := range fields {
		texts[i], _ = f.(string)
	}
	mark, info, files := texts[0], texts[1], texts[2]
	if mark == "" {
		return &PublishedSet{}, fmt.Errorf("%s: %w", s, ErrNothingPublished)
	}
	set := &PublishedSet{}
	if err = json.Unmarshal([]byte(info), &set.PublishedInfo); err == nil {
		set.Files, err = decode(files)
	}
	set.Version, set.Hash = infoOf(mark).Version, reload.NewSnapshot(set.Files).Hash
	if err == nil && set.mark() != mark {
		err = errors.New("the files do not match the hash")
	}
	if err != nil {
		return &PublishedSet{PublishedInfo: infoOf(mark)},
			fmt.Errorf("%s: %w: current is %.80q: %w", s, ErrDamaged, mark, err)
	}
	return set, nil
}

// Publish stores the set and sets its Version, but only if the current set is still the one in saw (Version 0: no set).
func (s *Published) Publish(ctx context.Context, set *PublishedSet, saw PublishedInfo) error {
	info, err := json.Marshal(set.PublishedInfo)
	if err != nil {
		return err
	}
	files, err := encode(set.Files)
	if err != nil {
		return err
	}
	version, err := publish.Run(ctx, s.redis.Client, []string{s.key}, saw.mark(), set.Hash, info, files).Uint64()
	switch {
	case err != nil && redisstore.Answered(err): // Redis refused the call, so the set is not published
		return s.failed("publish in", err)
	case err != nil:
		return s.failed("the result is unknown, publish again: publish in", err)
	case version == 0:
		now, err := s.Current(ctx)
		if err != nil {
			return fmt.Errorf("not published, since someone else has published meanwhile: %w", err)
		}
		return fmt.Errorf("not published: version %d by %s is in force, no longer version %d; look at its changes and "+
			"publish again", now.Version, now.Author, saw.Version)
	}
	set.Version = version
	return nil
}

type publishedFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// encode compresses the files, because Redis is blocked while it copies a set, and all replicas read the set at once.
func encode(files []reload.File) ([]byte, error) {
	out := make([]publishedFile, len(files))
	for i, f := range files {
		out[i] = publishedFile{f.Name, string(f.Data)}
	}
	var text bytes.Buffer
	zip := gzip.NewWriter(&text)
	enc := json.NewEncoder(zip)
	enc.SetEscapeHTML(false)
	if err := errors.Join(enc.Encode(out), zip.Close()); err != nil {
		return nil, err
	}
	if text.Len() > MaxPublishedStored {
		return nil, fmt.Errorf("the files have %d bytes compressed, at most %d (%d MiB) can be published", text.Len(),
			MaxPublishedStored, MaxPublishedStored>>20)
	}
	return text.Bytes(), nil
}

// decode reads what encode wrote. It returns an error for any other text.
func decode(text string) (files []reload.File, err error) {
	zip, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	var all []publishedFile
	in := io.LimitReader(zip, 4*MaxPublishedBytes) // more than enough for the escapes of JSON
	if err := json.NewDecoder(in).Decode(&all); err != nil {
		return nil, err
	}
	size := 0
	for _, f := range all {
		size += len(f.Text)
		files = append(files, reload.File{Name: f.Name, Data: []byte(f.Text)})
	}
	if size > MaxPublishedBytes || len(files) > MaxPublishedFiles {
		return nil, fmt.Errorf("the set has more than %d bytes or %d files", MaxPublishedBytes, MaxPublishedFiles)
	}
	return files, nil
}

// DiffFiles returns the names of the files that were added, changed and removed.
func DiffFiles(before, after []reload.File) (added, changed, removed []string) {
	old := make(map[string]reload.File, len(before))
	for _, f := range before {
		old[f.Name] = f
	}
	added, changed, removed = []string{}, []string{}, []string{}
	for _, f := range after {
		was, ok := old[f.Name]
		delete(old, f.Name)
		switch {
		case !ok:
			added = append(added, f.Name)
		case !bytes.Equal(was.Data, f.Data):
			changed = append(changed, f.Name)
		}
	}
	for _, f := range before {
		if _, ok := old[f.Name]; ok {
			removed = append(removed, f.Name)
		}
	}
	return added, changed, removed
}

var _ reload.Source = (*Follower)(nil)

// queryTimeout bounds the query for the current version, because a reload waits for its result.
const queryTimeout = 2 * time.Second

// outageRetry is the interval of hints while Redis is unreachable.
const outageRetry = 500 * time.Millisecond

// Follower is a reload.Source that reads the current set.
type Follower struct {
	sets     *Published
	onOutage func(error)

	mu     sync.Mutex
	last   *PublishedSet // set of the last successful read; nil before the first
	outage error         // error of the last query if Redis is unreachable, else nil
}

// Follow returns a Follower. If Redis becomes unreachable after a set was read, onOutage is called once with the error,
// and with nil once Redis is reachable again.
func (s *Published) Follow(onOutage func(error)) *Follower {
	return &Follower{sets: s, onOutage: onOutage}
}

// Last returns the set that was read last, active or refused, with Version 0 if there is none. outage is the error of
// the last query if Redis is unreachable.
func (f *Follower) Last() (info PublishedInfo, outage error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != nil {
		info = f.last.PublishedInfo
	}
	return info, f.outage
}

// Read implements reload.Source. While Redis is unreachable, it returns the last set, so that rule files can still be
// reloaded. If Redis is reachable but has no rules any more, Read returns an error, because Redis has lost them.
func (f *Follower) Read(ctx context.Context) (reload.Snapshot, error) {
	f.mu.Lock()
	last := f.last
	f.mu.Unlock()

	set, outage, err := f.read(ctx, last)
	if ctx.Err() != nil {
		return reload.Snapshot{}, ctx.Err()
	}
	f.mu.Lock()
	changed := last != nil && (outage == nil) != (f.outage == nil)
	f.outage = outage
	if err == nil {
		f.last = set
	}
	f.mu.Unlock()
	if changed {
		f.onOutage(outage)
	}
	if err != nil {
		return reload.Snapshot{}, err
	}
	return reload.NewSnapshot(set.Named()), nil
}

// read returns the current set, or last and the outage while Redis is unreachable. err says that the content of Redis
// is invalid or, if last is nil, that Redis is unreachable.
func (f *Follower) read(ctx context.Context, last *PublishedSet) (set *PublishedSet, outage, err error) {
	short, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	mark, err := query(f.sets, f.sets.redis.Client.HGet(short, f.sets.key, "current")) // "" if no rules are published
	if err == nil && last != nil && mark == last.mark() {
		return last, nil, nil
	}
	if err == nil {
		set, err = f.sets.Current(ctx)
	}
	switch {
	case err == nil || !errors.As(err, new(callError)):
		return set, nil, err
	case last != nil:
		return last, err, nil // rule files can still be reloaded
	default:
		return nil, err, fmt.Errorf("--rules store: %w", err)
	}
}

// Watch implements reload.Source. It sends a hint after each publication; after each connection, because a publication
// may have been missed before; and every outageRetry while Redis is unreachable.
func (f *Follower) Watch(ctx context.Context, changed chan<- struct{}) {
	subscription := f.sets.redis.Client.Subscribe(ctx, f.sets.key)
	heard := subscription.ChannelWithSubscriptions()
	defer func() {
		_ = subscription.Close() // only hints were read
		for range heard {        // wait until go-redis has closed the channel
		}
	}()
	tick := time.NewTicker(outageRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-heard:
			reload.Hint(changed)
		case <-tick.C:
			if _, outage := f.Last(); outage != nil {
				reload.Hint(changed)
			}
		}
	}
}
