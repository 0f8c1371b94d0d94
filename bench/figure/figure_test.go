package figure_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-ratelimit/weir/bench/figure"
)

func TestFigure(t *testing.T) {
	f := &figure.Figure{Title: "Cost", Size: "keys", Unit: "us", Sizes: []int{10, 1000}}
	f.Add("Go, us", true, 1)
	f.Add("Redis", false, 0)
	f.Put(0, 0.25)
	f.Put(0, 0.6)
	f.Put(1, figure.Unknown)
	f.Put(1, 3)
	want := "| keys | Go, us | Redis |\n|---|---|---|\n| 10 | 0.2 | |\n| 1,000 | 0.6 | 3 |\n"
	if got := f.Table(); got != want {
		t.Errorf("table\n%s, want\n%s", got, want)
	}
	path := filepath.Join(t.TempDir(), "cost.svg")
	if err := f.Draw(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	svg := string(text)
	for _, text := range []string{">Cost<", ">keys (logarithmic)<", ">us<", ">1,000<", ">Go, us<"} {
		if !strings.Contains(svg, text) {
			t.Errorf("the picture lacks %s", text)
		}
	}
	if strings.Contains(svg, "Redis") {
		t.Error("a column that is not plotted is drawn")
	}
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
