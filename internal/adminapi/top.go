package adminapi

import (
	"time"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
)

// TopBy is the order of keys.
type TopBy string

// The orders.
const (
	ByHits   TopBy = "hits"
	ByDenied TopBy = "denied"
)

// TopKeys is the answer of GET /top.
type TopKeys struct {
	By TopBy `json:"by"`
	// Since is when the counting of what is shown began: one to two minutes ago.
	Since time.Time `json:"since"`
	// KeptPerRule is the number of keys that are counted for each rule. Hashed says that values are shown as hashes.
	KeptPerRule int  `json:"kept_per_rule"`
	Hashed      bool `json:"values_hashed"`
	// Missed is the hits of rules for which there was no room, since the process started.
	Missed uint64   `json:"missed_hits"`
	Keys   []TopKey `json:"keys"`
}

// TopKey is one key of a rule. It had Hits-HitsError to Hits hits, and Denied-DeniedError to Denied of them were
// denied.
type TopKey struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	// Descriptor is the entries as commands take them: key=value,key=value.
	Descriptor string                 `json:"descriptor"`
	Entries    []descriptors.KeyEntry `json:"entries"`
	// Counter is the name of the counter that the rule's first limit keeps; empty where values are hashed.
	Counter     string `json:"counter,omitempty"`
	Hits        uint64 `json:"hits"`
	HitsError   uint64 `json:"hits_error"`
	Denied      uint64 `json:"denied"`
	DeniedError uint64 `json:"denied_error"`
	// Share is the key's part of its rule's hits, or of what the rule denied: at most 1.
	Share float64 `json:"share"`
}
