package metadata

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"
)

// Metadata is the same bytes as from protobuf, whatever its values are.
func TestEncodeAsProtobufDoes(t *testing.T) {
	scalar := rapid.OneOf(
		rapid.Float64().AsAny(), rapid.String().AsAny(), rapid.Bool().AsAny(), rapid.Just[any](nil),
		rapid.Map(rapid.IntRange(100, 20_000), func(n int) any { return string(bytes.Repeat([]byte("x"), n)) }),
	)
	value := scalar
	for range 3 {
		value = rapid.OneOf(scalar,
			rapid.Map(rapid.SliceOfN(value, 0, 4), func(list []any) any { return list }),
			rapid.Map(rapid.MapOfN(rapid.String(), value, 0, 4), func(fields map[string]any) any { return fields }),
		)
	}
	rapid.Check(t, func(t *rapid.T) {
		fields := rapid.MapOf(rapid.String(), value).Draw(t, "fields")
		m, err := structpb.NewStruct(fields)
		if err != nil {
			t.Fatal(err)
		}
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendStruct([]byte("before"), fields); !bytes.Equal(got, append([]byte("before"), want...)) {
			t.Fatalf("%v:\n got %x\nwant %x", fields, got, want)
		}
	})
}
