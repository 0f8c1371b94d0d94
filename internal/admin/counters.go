package admin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/boosts"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/logging"
	"github.com/weir-ratelimit/weir/internal/topkeys"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Boosts are the temporary factors on limits.
type Boosts interface {
	List() []adminapi.BoostStatus
	// Limits returns what replaces limits of the rules now; nil if nothing does.
	Limits() *decide.Boosts
	Away() error
	Add(ctx context.Context, in *adminapi.BoostRequest) (*adminapi.BoostStatus, error)
	Remove(ctx context.Context, id string) (*adminapi.Boost, error)
}

// getKey shows the key of a counter to everybody: it has no value that was not asked for.
func (h *handler) getKey(r *http.Request) (*adminapi.KeyState, error) {
	q := r.URL.Query()
	return h.Counters.Get(r.Context(), q.Get("domain"), q.Get("descriptor"))
}

func (h *handler) resetKey(r *http.Request) (*adminapi.ResetResult, error) {
	var target adminapi.ResetRequest
	if err := readJSON(r, &target); err != nil {
		return nil, err
	}
	done, err := h.Counters.Reset(r.Context(), target)
	attrs := []slog.Attr{slog.String("domain", shorten(target.Domain))}
	if done != nil {
		attrs = []slog.Attr{slog.String("domain", done.Domain), slog.String("rule", done.Rule)}
		var hashes []string
		for _, key := range done.Tried {
			hashes = append(hashes, hashOf(key))
		}
		attrs = append(attrs, slog.Int("counters", len(done.Counters)), slog.String("key_hashes", strings.Join(hashes, ",")))
	}
	h.audit(r, "reset", err, attrs...)
	return done, err
}

func (h *handler) listBoosts(r *http.Request) (adminapi.BoostList, error) {
	list := adminapi.BoostList{Boosts: h.Boosts.List()}
	if list.Boosts == nil {
		list.Boosts = []adminapi.BoostStatus{}
	}
	if list.Hashed = !h.seesValues(r); list.Hashed {
		list.Boosts = hideKeys(list.Boosts)
	}
	if err := h.Boosts.Away(); err != nil {
		list.Error = err.Error()
	}
	return list, nil
}

func (h *handler) addBoost(w http.ResponseWriter, r *http.Request) {
	var in adminapi.BoostRequest
	if err := readJSON(r, &in); err != nil {
		writeError(w, err)
		return
	}
	made, err := (*adminapi.BoostStatus)(nil), errTooMany
	if h.adding.Allow(time.Now()) {
		made, err = h.Boosts.Add(r.Context(), &in)
	}
	if err != nil {
		h.audit(r, "boost", err, slog.String("domain", shorten(in.Domain)), slog.String("rule", shorten(in.Rule)),
			slog.Float64("factor", in.Factor), slog.String("reason", shorten(in.Reason)), slog.String("author",
				shorten(in.Author)))
		writeError(w, err)
		return
	}
	h.audit(r, "boost", nil, boosts.Attrs(&made.Boost)...)
	writeJSON(w, http.StatusCreated, made)
}

func (h *handler) removeBoost(r *http.Request) (*adminapi.Boost, error) {
	id := r.PathValue("id")
	removed, err := h.Boosts.Remove(r.Context(), id)
	if err != nil {
		h.audit(r, "boost_remove", err, slog.String("boost", shorten(id)))
		return nil, err
	}
	h.audit(r, "boost_remove", nil, boosts.Attrs(removed)...)
	return removed, nil
}

// audit logs who changed what, and what became of it. Values of requests, which counters' keys have, are not logged: a
// hash of the key is.
func (h *handler) audit(r *http.Request, action string, err error, attrs ...slog.Attr) {
	result, level := "ok", slog.LevelInfo
	if err != nil {
		result, level = "failed", slog.LevelWarn
		attrs = append(attrs, slog.String("error", withoutValues(err)))
	}
	fields := []slog.Attr{
		slog.String("action", action), slog.String("result", result), slog.String("client", h.client(r)),
		slog.String("addr", r.RemoteAddr),
	}
	h.Log.LogAttrs(r.Context(), level, "audit", append(fields, attrs...)...)
}

// withoutValues is an error for the log.
func withoutValues(err error) string {
	switch {
	case errors.Is(err, boosts.ErrNotFound):
		return "not found"
	case isInvalid(err):
		return "refused as invalid"
	default:
		return err.Error()
	}
}

// client is who asks: the name in a verified certificate, else that the token was shown, else "local" for somebody on
// this machine, or "anyone".
func (h *handler) client(r *http.Request) string {
	switch {
	case r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		cert := r.TLS.VerifiedChains[0][0]
		if len(cert.URIs) > 0 {
			return cert.URIs[0].String()
		}
		if len(cert.DNSNames) > 0 {
			return cert.DNSNames[0]
		}
		return cert.Subject.String()
	case h.Token != nil: // without it nobody gets here
		return "token"
	case isLocal(r):
		return "local"
	default:
		return "anyone"
	}
}

// hashOf is the start of the key's SHA-256: printf %s KEY | sha256sum.
func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:8])
}

func readJSON(r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(nil, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return invalid("the body is not the JSON that is wanted: %s", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalid("the body is not the JSON that is wanted: there is more behind it; send one object")
	}
	return nil
}

// statusError is an error with the status of its answer, and what belongs into the header.
type statusError struct {
	status int
	msg    string
	header http.Header
}

func (e *statusError) Error() string { return e.msg }

func refused(status int, msg string) error { return &statusError{status: status, msg: msg} }

func invalid(format string, args ...any) error {
	return refused(http.StatusBadRequest, fmt.Sprintf(format, args...))
}

func isInvalid(err error) bool {
	known, ok := errors.AsType[*statusError](err)
	return ok && known.status == http.StatusBadRequest || errors.As(err, new(*boosts.InvalidError))
}

// errTooMany is the answer to boosts beyond what may be made in a minute.
var errTooMany = refused(http.StatusTooManyRequests,
	fmt.Sprintf("%d boosts were asked for within %s, the most that are taken; wait a little", maxAdded, addedIn))

// writeError answers what went wrong. All errors have this form.
func writeError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	known, isKnown := errors.AsType[*statusError](err)
	switch {
	case isKnown:
		status = known.status
		maps.Copy(w.Header(), known.header)
	case errors.Is(err, limiter.ErrUnavailable):
		status = http.StatusServiceUnavailable
	case errors.Is(err, boosts.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, boosts.ErrFull):
		status = http.StatusConflict
	case isInvalid(err):
		status = http.StatusBadRequest
	}
	writeJSON(w, status, adminapi.Error{Error: err.Error()})
}

// answers is a handler of what f returns, as JSON.
func answers[T any](f func(r *http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		answer, err := f(r)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

// hiddenKey is a counter's key with hashes in place of the values that a client has sent.
func hiddenKey(key string) string {
	terms, ok := descriptors.ParseKey(key)
	if !ok || terms.Cut {
		return topkeys.Hashed(key)
	}
	entries := make([]descriptors.Entry, len(terms.Entries))
	for i, e := range terms.Entries {
		entries[i] = descriptors.Entry{Key: e.Key, Value: topkeys.Hashed(e.Value)}
	}
	return terms.Algorithm + terms.Limit + "|" + terms.Domain + "|" + descriptors.FormatEntries(entries)
}

// hideKeys is the boosts without the values of their keys.
func hideKeys(list []adminapi.BoostStatus) []adminapi.BoostStatus {
	list = slices.Clone(list)
	for i := range list {
		keys := make([]string, len(list[i].Keys))
		for j, key := range list[i].Keys {
			keys[j] = hiddenKey(key)
		}
		if list[i].Keys != nil {
			list[i].Keys = keys
		}
	}
	return list
}

// maxShort is the most bytes of a client's text in the log or in an error.
const maxShort = 100

// shorten makes a client's text fit for the log or an error: bounded, and without control characters.
func shorten(text string) string {
	quoted := strconv.QuoteToGraphic(logging.Shorten(text, maxShort))
	return quoted[1 : len(quoted)-1]
}

const (
	// maxAdded boosts may be made in addedIn: nobody fills all places at once.
	maxAdded = 60
	addedIn  = time.Minute
)
