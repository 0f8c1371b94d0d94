package redisstore_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/weir-ratelimit/weir/internal/test/redistest"
	"github.com/weir-ratelimit/weir/pkg/limiter"
	"github.com/weir-ratelimit/weir/pkg/limiter/redisstore"
)

// rights are the ACL rules of docs/operate/redis.md.
const rights = "~weir:* &weir:* +evalsha +eval +set +setrange +get +mget +del +time +publish +subscribe +ping +select"

func TestUserOfAnACL(t *testing.T) {
	server := redistest.Start(t, strings.Fields("--user default off --user weir on >s3:cr/t "+rights)...)
	good := "redis://weir:s3:cr/t@" + server.Addr() + "/0"
	s := open(t, good, redisstore.Options{})
	if err := errors.Join(s.Ping(t.Context()), counts(t, s)); err != nil {
		t.Error(err)
	}
	hearRefunds(t, s, []string{"k"}, limiter.Hit{Key: "k", Policy: funnel(t, 10, time.Hour), N: -1})
	bad := open(t, strings.Replace(good, "s3", "n0", 1), redisstore.Options{})
	if err := counts(t, bad); !errors.Is(err, limiter.ErrUnavailable) || strings.Contains(err.Error(), "cr") {
		t.Errorf("wrong password: %v, want an ErrUnavailable without it", err)
	}
}
