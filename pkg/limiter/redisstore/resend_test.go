package redisstore_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// loseAnswer loses the answer to one script call.
type loseAnswer struct{ now bool }

func (*loseAnswer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*loseAnswer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *loseAnswer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if l.now && cmd.Name() == "evalsha" {
			l.now, err = false, io.EOF
			cmd.SetErr(err)
		}
		return err
	}
}

// A call whose answer is lost is not sent again: the server may have counted it.
func TestLostAnswerIsNotSentAgain(t *testing.T) {
	c, lose := redistest.Client(t, redistest.Start(t).URL(), patient), &loseAnswer{}
	c.AddHook(lose)
	s, err := redisstore.New(c, redisstore.Options{Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	p := funnel(t, 10, time.Hour)
	take(t, s, "k", p, 1)
	lose.now = true
	err = s.Take(t.Context(), []limiter.Hit{{Key: "k", Policy: p, N: 1}}, make([]limiter.Decision, 1))
	if !errors.Is(err, io.EOF) {
		t.Errorf("a lost answer: %v", err)
	}
	if d := take(t, s, "k", p, 0); d.Remaining != 8 {
		t.Errorf("%d remain, want 8 of 10 after two hits", d.Remaining)
	}
}
