package boosts

import (
	"context"
	"crypto/rand"
	_ "embed" // the scripts
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

const (
	// timeout bounds each command: no request waits for it.
	timeout = 2 * time.Second
	// poll is how often the boosts are read although nothing was published.
	poll = 5 * time.Second
	// extraTTL is how much longer than its last boost the key lives, so that a process whose clock is behind does not lose
	// a boost too early.
	extraTTL = time.Minute
	// maxBytes is the most that all boosts have in Redis.
	maxBytes = 1 << 20
	// maxRevision is longer than any revision, in bytes.
	maxRevision = 100
	// tries are how often a change is tried while others change the boosts, too.
	tries = 20
)

//go:embed read.lua
var readText string

//go:embed change.lua
var changeText string

var readScript, changeScript = redis.NewScript(readText), redis.NewScript(changeText)

var _ Store = (*Redis)(nil)

// Redis holds the boosts of all processes on one Redis and key prefix: one string, PREFIX1:boosts, that is a revision,
// a line feed, and the boosts in JSON. It changes in one step and expires with its last boost.
type Redis struct{ *store.Document }

// NewRedis returns the boosts on the connections of a Redis. It does not connect.
func NewRedis(r *store.Redis) *Redis {
	return &Redis{store.NewDocument(r, store.DocumentOptions{Name: "boosts", Timeout: timeout, Poll: poll})}
}

func (r *Redis) failed(doing string, err error) error {
	return fmt.Errorf("%w: %s the boosts in %s: %w", limiter.ErrUnavailable, doing, r.Server(), err)
}

func (r *Redis) run(ctx context.Context, script *redis.Script, args ...any) (cmd *redis.Cmd) {
	err := r.Do(ctx, func(c redis.UniversalClient) error {
		cmd = script.Run(ctx, c, []string{r.Key()}, args...)
		return cmd.Err()
	})
	if cmd == nil { // no server was found
		cmd = redis.NewCmd(ctx)
		cmd.SetErr(err)
	}
	return cmd
}

// Read implements Store.
func (r *Redis) Read(ctx context.Context, known string) (all []adminapi.Boost, revision string, same bool, err error) {
	defer func() { r.Looked(err) }()
	text, err := r.run(ctx, readScript, known).Text()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, known, true, nil
	case err != nil:
		return nil, "", false, r.failed("read", err)
	case text == "":
		return nil, "", false, nil
	}
	revision, list, _ := strings.Cut(text, "\n")
	if len(revision) > maxRevision || len(list) > maxBytes {
		err = fmt.Errorf("it has %d bytes, the most that is kept is %d", len(text), maxBytes)
	} else if err = json.Unmarshal([]byte(list), &all); err == nil && len(all) > Max {
		err = fmt.Errorf("it has %d boosts, the most that is kept is %d", len(all), Max)
	}
	if err != nil {
		return nil, "", false, r.failed("read", fmt.Errorf("%s is not what weir wrote: %w; delete it to begin again", r.Key(),
			err))
	}
	return all, revision, false, nil
}

// Change implements Store.
func (r *Redis) Change(ctx context.Context, change func([]adminapi.Boost) ([]adminapi.Boost, error)) error {
	for range tries {
		all, revision, _, err := r.Read(ctx, "?") // no revision that is given
		if err != nil {
			return err
		}
		if all, err = change(all); err != nil {
			return err
		}
		text, left, err := encode(all)
		if err != nil {
			return err
		}
		done, err := r.run(ctx, changeScript, revision, text, left.Milliseconds()).Bool()
		if err != nil && !errors.Is(err, redis.Nil) {
			if redisstore.Answered(err) {
				return r.failed("change", err)
			}
			return r.failed("it is not known whether it was done, look with weir boost list; change", err)
		}
		if done {
			return nil
		}
	}
	return r.failed("change", errors.New("others change them at the same time; try again"))
}

// encode returns a new revision of the boosts, empty for none, and its time to live.
func encode(all []adminapi.Boost) (text string, left time.Duration, err error) {
	if len(all) == 0 {
		return "", 0, nil
	}
	list, err := json.Marshal(all)
	if err != nil {
		return "", 0, err
	}
	if len(list) > maxBytes {
		return "", 0, fmt.Errorf("all boosts together would have %d bytes, the most that is kept is %d; remove some",
			len(list), maxBytes)
	}
	now := time.Now()
	for i := range all {
		left = max(left, all[i].ExpiresAt.Sub(now))
	}
	return rand.Text() + "\n" + string(list), left + extraTTL, nil
}
