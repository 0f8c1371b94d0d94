package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/store"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

type keysCmd struct {
	Redis redisFlags `embed:""`

	Match     string `default:"*" placeholder:"GLOB" help:"Only keys that match this pattern, written without prefix and version."`
	KeyFormat string `default:"1" placeholder:"N" help:"Version of the key format; releases of Weir with the same version share counters. * for all."`
	List      bool   `xor:"what" help:"Show each key: type, time to live, bytes, and the parts of its name. This is the default."`
	Count     bool   `xor:"what" help:"Show only their number and bytes."`
	Delete    bool   `xor:"what" help:"Delete them: those limits start empty. Needs --yes."`
	Yes       bool   `help:"Confirm --delete."`

	Output outputFlags `embed:""`
}

func (*keysCmd) Help() string {
	return `Lists keys with SCAN, on every master of a cluster, so Redis stays responsive. While counters are created and
expire, a key may be missing or appear twice.

GLOB is a pattern of Redis: * and ? match anything, [ab] one of several characters. A counter's key is
algorithm|domain|key=value|key=value; in a cluster what follows the first | is in braces.

It shows published rules and boosts (the keys rules and boosts), but never deletes them.

With --format json each key is one line with an object; --count and --delete write one object with the sums.

Exit codes: 0 done, 1 Redis does not answer, 2 the command line is wrong.

Examples:

    weir keys --count
    weir keys --match '*|shop|*'
    weir keys --match '*|api_key=abc*' --delete --yes
    weir keys --key-format '*' --count`
}

func (c *keysCmd) Run(ctx context.Context, io streams) error {
	if err := c.validate(); err != nil {
		return usage(err)
	}
	keys, err := store.OpenKeys(c.Redis.Store, c.Redis.StoreKeyPrefix) //nolint:contextcheck // it does not connect
	if err != nil {
		return usage(fmt.Errorf("--store: %w", err))
	}
	defer keys.Close() //nolint:errcheck // everything was answered
	var sum keySums
	err = keys.Walk(ctx, c.KeyFormat, c.Match, !c.Delete, func(ctx context.Context, page []store.Key) error {
		switch {
		case c.Delete:
			return sum.delete(ctx, keys, page)
		case !c.Count:
			if err := c.show(io, page); err != nil {
				return err
			}
		}
		sum.add(page)
		return nil
	})
	if err != nil {
		if sum.Deleted > 0 {
			return fmt.Errorf("%s deleted, the others not: %w", count(sum.Deleted, "key"), err)
		}
		return err
	}
	return c.showSum(io, &sum)
}

func (c *keysCmd) validate() error {
	switch {
	case c.Delete && !c.Yes:
		return errors.New("--delete: add --yes to delete the counters, which cannot be undone; --count shows how many " +
			"there are")
	case c.Yes && !c.Delete:
		return errors.New("--yes: is for --delete")
	case c.KeyFormat != "*" && (c.KeyFormat == "" || strings.Trim(c.KeyFormat, "0123456789") != ""):
		return fmt.Errorf("--key-format: must be a number or *, got %q", c.KeyFormat)
	}
	return nil
}

// keySums are what --count and --delete print.
type keySums struct {
	Keys    int   `json:"keys"`
	Bytes   int64 `json:"bytes"`
	NoTTL   int   `json:"without_ttl"` // published rules left out
	Deleted int   `json:"deleted"`
}

func (s *keySums) add(page []store.Key) {
	for _, k := range page {
		s.Keys++
		s.Bytes += k.Bytes
		if k.TTL == store.NoTTL && !k.Published() {
			s.NoTTL++
		}
	}
}

func (s *keySums) delete(ctx context.Context, keys *store.Keys, page []store.Key) error {
	var counters []store.Key
	for _, k := range page {
		if !k.Published() && !k.Boosts() {
			counters = append(counters, k)
		}
	}
	if len(counters) == 0 {
		return nil
	}
	n, err := keys.Delete(ctx, counters)
	s.Keys += len(counters)
	s.Deleted += n
	return err
}

// keyLine is a key in JSON.
type keyLine struct {
	Key    string                `json:"key"`
	Format string                `json:"format"`
	Type   string                `json:"type"`
	TTL    float64               `json:"ttl_seconds"` // -1: it stays for ever
	Bytes  int64                 `json:"bytes"`
	Terms  *descriptors.KeyTerms `json:"terms,omitempty"`
}

func (c *keysCmd) show(io streams, page []store.Key) error {
	enc := jsonLines(io.out)
	for i := range page {
		k := &page[i]
		line := keyLine{Key: k.Name, Format: k.Format, Type: k.Type, TTL: k.TTL.Seconds(), Bytes: k.Bytes}
		ttl, what := k.TTL.Round(time.Millisecond).String(), ""
		if k.TTL == store.NoTTL {
			line.TTL, ttl = -1, "for ever"
		}
		terms, isCounter := descriptors.ParseKey(k.Rest)
		switch {
		case isCounter:
			line.Terms, what = &terms, "  "+describe(&terms)
		case k.Published():
			what = "  published rules"
		case k.Boosts():
			what = "  boosts"
		}
		if !c.Output.json() {
			fmt.Fprintf(io.out, "%q  %s  ttl %s  %d bytes%s\n", k.Name, k.Type, ttl, k.Bytes, what)
		} else if err := enc.Encode(line); err != nil {
			return err
		}
	}
	return nil
}

// describe is the rule's terms in words.
func describe(t *descriptors.KeyTerms) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain %q", t.Domain)
	for _, e := range t.Entries {
		fmt.Fprintf(&b, " %s=%q", e.Key, e.Value)
	}
	fmt.Fprintf(&b, " %s", t.Algorithm)
	switch name, isName := strings.CutPrefix(t.Limit, ":"); { // what is behind the algorithm in the key
	case t.Limit == "":
	case isName:
		fmt.Fprintf(&b, " limit %s", printable(name))
	default:
		fmt.Fprintf(&b, " (%s)", printable(t.Limit))
	}
	return b.String()
}

func (c *keysCmd) showSum(io streams, sum *keySums) error {
	switch {
	case c.Output.json() && (c.Count || c.Delete):
		return printJSON(io, sum)
	case c.Output.json():
	case c.Delete:
		fmt.Fprintf(io.out, "%s deleted\n", count(sum.Deleted, "key"))
	default:
		fmt.Fprintf(io.out, "%s, %d bytes, %d without a time to live\n", count(sum.Keys, "key"), sum.Bytes, sum.NoTTL)
	}
	return nil
}
