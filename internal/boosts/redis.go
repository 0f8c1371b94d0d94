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

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

const (
	// timeout bounds each command: they are not on a request's way.
	timeout = 2 * time.Second
	// connections are for the poll and for what an operator asks.
	connections = 2
	// keptLonger is how much longer than its last boost the key is kept, so that a sidecar whose clock is behind does not
	// lose a boost too early.
	keptLonger = time.Minute
	// maxBytes is the most that all boosts have in Redis.
	maxBytes = 1 << 20
	// tries are how often a change is tried while others change, too.
	tries = 20
)

//go:embed read.lua
var readText string

//go:embed change.lua
var changeText string

var readScript, changeScript = redis.NewScript(readText), redis.NewScript(changeText)

var _ Store = (*Redis)(nil)

// Redis keeps the boosts of all sidecars on one Redis and key prefix: one string, PREFIX1:boosts, that is a revision, a line
// feed, and the boosts in JSON. It changes in one step and ends with its last boost.
type Redis struct {
	store  *store.Redis
	client redis.UniversalClient
	key    string
}

// OpenRedis does not connect. An error says what is wrong with the URL.
func OpenRedis(url, keyPrefix string) (*Redis, error) {
	r, err := store.Connect(store.RedisOptions{URL: url, KeyPrefix: keyPrefix, MinTimeout: timeout, PoolSize: connections})
	if err != nil {
		return nil, err
	}
	return &Redis{store: r, client: r.Client, key: r.Prefix() + "boosts"}, nil
}

// Close ends the connections.
func (r *Redis) Close() error { return r.store.Close() }

func (r *Redis) failed(doing string, err error) error {
	return fmt.Errorf("%w: %s the boosts in %s: %w", limiter.ErrUnavailable, doing, r.store, err)
}

// Read is the boosts and their revision; same says that it is still the one that is known, and nothing else is told.
func (r *Redis) Read(ctx context.Context, known string) (all []Boost, revision string, same bool, err error) {
	text, err := readScript.Run(ctx, r.client, []string{r.key}, known).Text()
	switch {
	case errors.Is(err, redis.Nil):
		return nil, known, true, nil
	case err != nil:
		return nil, "", false, r.failed("read", err)
	case text == "":
		return nil, "", false, nil
	}
	revision, list, _ := strings.Cut(text, "\n")
	if err := json.Unmarshal([]byte(list), &all); err != nil {
		return nil, "", false, r.failed("read", fmt.Errorf("%s is not what weir wrote: %w; delete it to begin anew", r.key, err))
	}
	return all, revision, false, nil
}

// Change replaces the boosts by what change makes of them, which may be called again if others change them meanwhile.
func (r *Redis) Change(ctx context.Context, change func([]Boost) ([]Boost, error)) error {
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
		done, err := changeScript.Run(ctx, r.client, []string{r.key}, revision, text, left.Milliseconds()).Bool()
		if err != nil && !errors.Is(err, redis.Nil) {
			if _, told := errors.AsType[redis.Error](err); told {
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

// encode is a new revision of the boosts, empty for none, and how long it is kept.
func encode(all []Boost) (text string, left time.Duration, err error) {
	if len(all) == 0 {
		return "", 0, nil
	}
	list, err := json.Marshal(all)
	if err != nil {
		return "", 0, err
	}
	if len(list) > maxBytes {
		return "", 0, fmt.Errorf("all boosts together would have %d bytes, the most that is kept is %d; remove some", len(list), maxBytes)
	}
	now := time.Now()
	for i := range all {
		left = max(left, all[i].ExpiresAt.Sub(now))
	}
	return rand.Text() + "\n" + string(list), left + keptLonger, nil
}

// Watch hints at changes, which are told on a channel, until ctx is done: also after a connection was lost and made anew.
func (r *Redis) Watch(ctx context.Context, changed chan<- struct{}) {
	r.store.Hints(ctx, r.key, changed)
}
