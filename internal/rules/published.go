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

// Bounds.
const (
	// MaxPublishedBytes is the most that the files of a set may have together: some sixty thousand rules.
	MaxPublishedBytes = 8 << 20
	// MaxPublishedStored is the most that they may have in Redis, compressed, which does nothing else while it copies
	// them: 137 ms for 8 MiB.
	MaxPublishedStored = 1 << 20
	// MaxPublishedFiles is the most files of a set.
	MaxPublishedFiles = 10_000
	// maxAuthor is the longest author, in bytes.
	maxAuthor = 200
)

//go:embed publish.lua
var publishText string

var publish = redis.NewScript(publishText)

// What may be wrong with the set in force. A new set can replace one that is damaged.
var (
	ErrNothingPublished = errors.New("no rules are published; publish some with weir publish")
	ErrDamaged          = errors.New("the published rules are damaged")
)

// PublishedInfo is what is known of a set.
type PublishedInfo struct {
	Version     uint64    `json:"version"`
	Hash        string    `json:"hash"` // of the files' names and contents
	Author      string    `json:"author"`
	PublishedAt time.Time `json:"published_at"` // by the publisher's clock
	Files       int       `json:"files"`
	Bytes       int       `json:"bytes"`
}

// PublishedSet is the files of one version. Their names are relative to the folder that was published.
type PublishedSet struct {
	PublishedInfo

	Files []reload.File
}

// NewPublishedSet checks what is to be published. Its Version is for Publish to give.
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
		return nil, fmt.Errorf("there are %d files, the most that are published are %d; join some", len(files),
			MaxPublishedFiles)
	case size > MaxPublishedBytes:
		return nil, fmt.Errorf("the files have %d bytes, the most that is published is %d (%d MiB)", size, MaxPublishedBytes,
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

// Named are the files under the names by which processes know them: store:NAME@VERSION.
func (s *PublishedSet) Named() []reload.File {
	named := make([]reload.File, len(s.Files))
	for i, f := range s.Files {
		named[i] = reload.File{Name: fmt.Sprintf("store:%s@%d", f.Name, s.Version), Data: f.Data}
	}
	return named
}

// Published are the rule files that are kept in Redis, as one set with a version, so that every process of a mesh has
// the same rules. It is safe for concurrent use. All of it is one hash, PREFIX1:rules, which lies in one slot of a
// cluster and changes in one step:
//
//	current    "VERSION HASH" of the set in force
//	info       what is known of it: a PublishedInfo, in JSON
//	files      its files, in JSON, compressed by gzip
//
// A version is one more than the version before. The hash has no time to live: it is the one key of Weir that may stay
// for ever.
type Published struct {
	redis *store.Redis
	key   string // of the hash, and the channel where its changes are published
}

// NewPublished returns the sets on the connections of a Redis, which are for commands (store.ConnectForCommand), since
// a set may have MaxPublishedBytes. It does not connect.
func NewPublished(r *store.Redis) *Published { return &Published{r, r.Prefix() + "rules"} }

// String names the hash and the server, without user and password.
func (s *Published) String() string { return s.key + " in " + s.redis.String() }

// callError is that Redis was asked and did not answer, or not what was asked; it says nothing of what Redis holds.
type callError struct{ error }

// Unwrap is for errors.As.
func (e callError) Unwrap() error { return e.error }

// failed names the server.
func (s *Published) failed(doing string, err error) error {
	return callError{fmt.Errorf("%s %s: %w", doing, s.redis, err)}
}

// mark is `current`: "VERSION HASH", or what stands there instead.
func (i *PublishedInfo) mark() string {
	if i.Version == 0 {
		return i.Hash
	}
	return strconv.FormatUint(i.Version, 10) + " " + i.Hash
}

// infoOf returns the version and hash of a mark. Of version 0: Hash is what stands there instead.
func infoOf(mark string) PublishedInfo {
	version, hash, _ := strings.Cut(mark, " ")
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil || n == 0 {
		return PublishedInfo{Hash: mark}
	}
	return PublishedInfo{Version: n, Hash: hash}
}

// query returns the answer to a command; what Redis does not have is no error. Its error is a callError.
func query[T any](s *Published, command interface{ Result() (T, error) }) (answer T, err error) {
	answer, err = command.Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return answer, s.failed("read the rules in", err)
	}
	return answer, nil
}

// current is the mark in force, "" if nothing is published.
func (s *Published) current(ctx context.Context) (string, error) {
	return query(s, s.redis.Client.HGet(ctx, s.key, "current"))
}

// Current returns the set in force. Its error wraps ErrNothingPublished if there is none, and ErrDamaged if the set
// cannot be read. With both the result is what Publish needs to replace the set.
func (s *Published) Current(ctx context.Context) (*PublishedSet, error) {
	fields, err := query(s, s.redis.Client.HMGet(ctx, s.key, "current", "info", "files"))
	if err != nil {
		return nil, err
	}
	var texts [3]string // empty for a field that is not there
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
		err = errors.New("the files are not those of the hash")
	}
	if err != nil {
		return &PublishedSet{PublishedInfo: infoOf(mark)},
			fmt.Errorf("%s: %w: current is %.80q: %w", s, ErrDamaged, mark, err)
	}
	return set, nil
}

// Publish puts the set in force if the one that is in force still is saw (of version 0: none), and gives it its
// version.
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
	case err != nil && redisstore.Answered(err): // Redis has refused it, so it is not published
		return s.failed("publish in", err)
	case err != nil:
		return s.failed("it is not known whether it was published; publish it again: publish in", err)
	case version == 0:
		now, err := s.Current(ctx)
		if err != nil {
			return fmt.Errorf("not published, since somebody else has changed what is in force: %w", err)
		}
		return fmt.Errorf("not published: version %d by %s is in force, and not %d as before; look at what it changes and "+
			"publish again", now.Version, now.Author, saw.Version)
	}
	set.Version = version
	return nil
}

// publishedFile is a file in JSON.
type publishedFile struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// encode compresses, since Redis does nothing else while it takes a set, and every process reads it at the same time.
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
		return nil, fmt.Errorf("the files have %d bytes compressed, the most that is published is %d (%d MiB)", text.Len(),
			MaxPublishedStored, MaxPublishedStored>>20)
	}
	return text.Bytes(), nil
}

// decode reads what encode has written, or, with an error, what somebody else has.
func decode(text string) (files []reload.File, err error) {
	zip, err := gzip.NewReader(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	var all []publishedFile
	in := io.LimitReader(zip, 4*MaxPublishedBytes) // JSON's own escapes are far less
	if err := json.NewDecoder(in).Decode(&all); err != nil {
		return nil, err
	}
	size := 0
	for _, f := range all {
		size += len(f.Text)
		files = append(files, reload.File{Name: f.Name, Data: []byte(f.Text)})
	}
	if size > MaxPublishedBytes || len(files) > MaxPublishedFiles {
		return nil, fmt.Errorf("it has more than %d bytes, or than %d files", MaxPublishedBytes, MaxPublishedFiles)
	}
	return files, nil
}

// DiffFiles is the names of the files that are only after, differ, and are only before.
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

// look bounds the question which version is in force, the only one that is asked while nothing changes: whoever reloads
// waits for it.
const look = 2 * time.Second

// awayRetry is the interval of hints while Redis cannot be reached.
const awayRetry = 500 * time.Millisecond

// Follower is the set in force as a source of rule files.
type Follower struct {
	sets   *Published
	onAway func(error)

	mu   sync.Mutex
	last *PublishedSet // that was read; nil before the first
	away error         // why Redis could not be asked at the last look
}

// Follow makes the source. onAway hears, once each time that changes, why Redis cannot be asked although a set was read
// before, and nil when it can again.
func (s *Published) Follow(onAway func(error)) *Follower { return &Follower{sets: s, onAway: onAway} }

// Last is the set that was read last, in force or refused; a PublishedInfo of version 0 if there is none. away is why
// Redis could not be asked at the last look.
func (f *Follower) Last() (info PublishedInfo, away error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last != nil {
		info = f.last.PublishedInfo
	}
	return info, f.away
}

// Read implements reload.Source. While Redis cannot be asked it gives the set that was read last: files beside it can
// be reloaded all the same. That nothing is published any more is an error: Redis has lost it.
func (f *Follower) Read(ctx context.Context) (reload.Snapshot, error) {
	f.mu.Lock()
	last := f.last
	f.mu.Unlock()

	set, away, err := f.read(ctx, last)
	if ctx.Err() != nil {
		return reload.Snapshot{}, ctx.Err()
	}
	f.mu.Lock()
	changed := last != nil && (away == nil) != (f.away == nil)
	f.away = away
	if err == nil {
		f.last = set
	}
	f.mu.Unlock()
	if changed {
		f.onAway(away)
	}
	if err != nil {
		return reload.Snapshot{}, err
	}
	return reload.NewSnapshot(set.Named()), nil
}

// read is the set in force, or last while Redis is away. An error is the verdict on what Redis holds, or, without last,
// why it is away.
func (f *Follower) read(ctx context.Context, last *PublishedSet) (set *PublishedSet, away, err error) {
	short, cancel := context.WithTimeout(ctx, look)
	defer cancel()
	mark, err := f.sets.current(short)
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
		return last, err, nil // the folders beside it go on
	default:
		return nil, err, fmt.Errorf("--rules store: %w", err)
	}
}

// Watch implements reload.Source: there is a hint after each publication, after a connection was made, which may have
// missed one, and at intervals while Redis is away.
func (f *Follower) Watch(ctx context.Context, changed chan<- struct{}) {
	subscription := f.sets.redis.Client.Subscribe(ctx, f.sets.key)
	heard := subscription.ChannelWithSubscriptions()
	defer func() {
		_ = subscription.Close() // nothing was written
		for range heard {        // until go-redis no longer reads from the connection
		}
	}()
	tick := time.NewTicker(awayRetry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-heard:
			reload.Hint(changed)
		case <-tick.C:
			if _, away := f.Last(); away != nil {
				reload.Hint(changed)
			}
		}
	}
}
