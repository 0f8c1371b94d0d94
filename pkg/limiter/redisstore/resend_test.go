package redisstore_test

import (
	"errors"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// A call without a reply is not sent again, because the server may have counted it.
func TestLostAnswerIsNotSentAgain(t *testing.T) {
	c, loses := redistest.Client(t, redistest.Start(t).URL(), patient), false
	c.AddHook(redistest.Hook(func(cmds []redis.Cmder, send func() error) error {
		err := send()
		if loses && cmds[0].Name() == "evalsha" {
			loses, err = false, io.EOF
			cmds[0].SetErr(err)
		}
		return err
	}))
	s, err := redisstore.New(c, redisstore.Options{Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	p := funnel(t, 10, time.Hour)
	take(t, s, "k", p, 1)
	loses = true
	err = s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1))
	if !errors.Is(err, io.EOF) {
		t.Errorf("a lost answer: %v", err)
	}
	if d := take(t, s, "k", p, 0); d.Remaining != 8 {
		t.Errorf("%d remain, want 8 of 10 after two hits", d.Remaining)
	}
}
