package actions_test

import (
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/internal/test/casetest"
)

// TestRefused has what is wrong or not supported, with its place and what to write instead.
func TestRefused(t *testing.T) {
	for _, tt := range casetest.Table[struct{ All, Action, Limit, Want string }](t, "testdata/refused.yaml") {
		text := tt.All
		switch {
		case tt.Action != "":
			text = "[{actions: [{remote_address: {}}, {" + tt.Action + "}]}]"
		case tt.Limit != "":
			text = "[{actions: [{remote_address: {}}], " + tt.Limit + "}]"
		}
		refused(t, toJSON(t, text), tt.Want)
	}
}

// refused checks the error about a text in JSON.
func refused(t *testing.T, text, want string) {
	t.Helper()
	shown := text[:min(len(text), 200)]
	switch _, err := parse([]byte(text)); {
	case err == nil:
		t.Errorf("%s\nis accepted, want: %s", shown, want)
	case !strings.Contains(err.Error(), want):
		t.Errorf("%s\nerror: %v\n want: %s", shown, err, want)
	case !strings.HasPrefix(err.Error(), "rate_limits"):
		t.Errorf("%s\nerror without its place: %v", shown, err)
	}
}
