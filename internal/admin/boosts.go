package admin

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/weir-ratelimit/weir/internal/admin/topkeys"
	"github.com/weir-ratelimit/weir/internal/adminapi"
	"github.com/weir-ratelimit/weir/internal/boosts"
	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/pkg/descriptors"
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

const (
	// maxAdded boosts may be made in addedIn: nobody fills all places at once.
	maxAdded = 60
	addedIn  = time.Minute
)

// errTooMany is the answer to boosts beyond what may be made in a minute.
var errTooMany = refused(http.StatusTooManyRequests,
	fmt.Sprintf("%d boosts were asked for within %s, the most that are taken; wait a little", maxAdded, addedIn))

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
