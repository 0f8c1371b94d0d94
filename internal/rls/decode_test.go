package rls

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	commonpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-ratelimit/weir/internal/decide"
	"github.com/weir-ratelimit/weir/internal/descriptors"
)

// newCall returns a call with these maximum numbers of descriptors and entries.
func newCall(tb testing.TB, most int) *call {
	tb.Helper()
	d, err := decide.New(decide.Options{
		Rules: func() *descriptors.Set { return nil }, Store: storeFunc(down), MaxEntries: most,
		Config: decide.Config{MaxDescriptors: most},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return &call{Request: d.NewRequest(), large: make(chan struct{}, 1), ctx: context.Background()}
}

// boundless returns a call whose bounds no test reaches.
func boundless(tb testing.TB) *call {
	tb.Helper()
	return newCall(tb, math.MaxInt)
}

// decoded returns the request as decoded by decode.
func (c *call) decoded() *pb.RateLimitRequest {
	req := &pb.RateLimitRequest{Domain: c.Domain, HitsAddend: c.addend}
	for i, q := range c.wire {
		d := &commonpb.RateLimitDescriptor{IsNegativeHits: q.isNegative}
		for _, e := range c.Descriptors[i].Entries {
			d.Entries = append(d.Entries, &commonpb.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
		}
		if q.addend.present {
			d.HitsAddend = wrapperspb.UInt64(q.addend.value)
		}
		if q.limit.present {
			d.Limit = &commonpb.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: q.limit.requests, Unit: q.limit.unit}
			if q.limit.multiplier.present {
				d.Limit.UnitMultiplier = wrapperspb.UInt32(q.limit.multiplier.value)
			}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// text has, by field, nil for a text, and for a message its own fields with texts.
type text map[protowire.Number]text

// requestText has the domain, and the keys and values of the descriptors' entries.
var requestText = text{1: nil, 2: {1: {1: nil, 2: nil}}}

// repair appends the message with a ? for each run of bytes that are not UTF-8. It fails if the message is
// malformed.
func (t text) repair(dst, message []byte) (_ []byte, ok bool) {
	for len(message) > 0 {
		number, kind, size := protowire.ConsumeField(message)
		if size < 0 {
			return nil, false
		}
		fields, known := t[number]
		if !known || kind != protowire.BytesType {
			dst = append(dst, message[:size]...)
			message = message[size:]
			continue
		}
		_, _, tag := protowire.ConsumeTag(message)
		value, _ := protowire.ConsumeBytes(message[tag:])
		if fields == nil {
			value = bytes.ToValidUTF8(value, []byte("?"))
		} else if value, ok = fields.repair(nil, value); !ok {
			return nil, false
		}
		dst = protowire.AppendBytes(protowire.AppendTag(dst, number, kind), value)
		message = message[size:]
	}
	return dst, true
}

// checkDecode compares decode with protobuf, for which text that is not UTF-8 has been repaired.
func checkDecode(t *testing.T, data []byte) {
	t.Helper()
	want := &pb.RateLimitRequest{}
	repaired, ok := requestText.repair(nil, data)
	ok = ok && proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(repaired, want) == nil
	c := boundless(t)
	if err := c.decode(mem.BufferSlice{mem.SliceBuffer(data)}); errors.Is(err, errMalformed) == ok {
		t.Fatalf("decode(%x): %v; that protobuf accepts it is %t", data, err, ok)
	}
	if !ok {
		return
	}
	if got := c.decoded(); !proto.Equal(want, got) {
		t.Fatalf("decode(%x) (-protobuf +decode):\n%s", data, cmp.Diff(want, got, protocmp.Transform()))
	}
	checkBoundedDecode(t, data, want)
}

// checkBoundedDecode checks what is kept of a request with too many descriptors or entries.
func checkBoundedDecode(t *testing.T, data []byte, want *pb.RateLimitRequest) {
	t.Helper()
	const most = 1
	c := newCall(t, most)
	if err := c.decode(mem.BufferSlice{mem.SliceBuffer(data)}); errors.Is(err, errMalformed) {
		t.Fatalf("decode(%x) with bounds: %v", data, err)
	}
	ds := want.GetDescriptors()
	if n := len(ds); len(c.wire) != min(n, most) || len(c.Descriptors) != min(n, most) {
		t.Fatalf("decode(%x) has kept %d and %d descriptors of %d", data, len(c.wire), len(c.Descriptors), n)
	}
	for i, d := range c.Descriptors {
		if n := len(ds[i].GetEntries()); len(d.Entries) != min(n, most) {
			t.Fatalf("decode(%x) has kept %d entries of %d", data, len(d.Entries), n)
		}
	}
}

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// field is a field with a length on the wire.
func field(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(parts...))
}

func varint(number protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), n)
}

// requests has encoded requests, well-formed and malformed.
func requests(tb testing.TB) map[string][]byte {
	tb.Helper()
	all := request(
		descriptor("remote_address=10.0.0.1"),
		multiplied(7, costing(1<<40, limited(3, typepb.RateLimitUnit_DAY, descriptor("user=Zoë", "deeper=")))),
		negative(descriptor("x=")),
	)
	all.HitsAddend = math.MaxUint32
	nested := slices.Concat(bytes.Repeat([]byte{0x7b}, 10_002), bytes.Repeat([]byte{0x7c}, 10_002))
	return map[string][]byte{
		"nothing": nil,
		"all":     marshal(tb, all),
		"empty descriptors": slices.Concat(
			field(1, []byte("shop")),
			field(2),
			field(2, field(1)),
			field(2, field(2)),
			field(2, field(3)),
		),
		"the last scalar": slices.Concat(
			field(1, []byte("a")),
			varint(3, 1),
			field(1, []byte("b")),
			varint(3, 2),
			field(1),
		),
		"merged limits": field(
			2,
			field(2, varint(1, 5), varint(2, 1)),
			field(2, varint(2, 3), field(3, varint(1, 9))),
			field(2, field(3)),
		),
		"merged addends": field(2, field(3, varint(1, 5)), field(3)),
		"numbers cut": slices.Concat(
			varint(3, 1<<32+7),
			field(2, varint(4, 1<<40), field(2, varint(1, 1<<33), varint(2, 1<<35+1), field(3, varint(1, 1<<36)))),
		),
		"a negative unit":    field(2, field(2, varint(2, math.MaxUint64))),
		"no longer negative": field(2, varint(4, 1), varint(4, 0)),
		"unknown fields": slices.Concat(
			field(99, []byte("x")),
			varint(77, 1),
			field(2, field(8, field(1)), field(1, varint(3, 1), field(1, []byte("k")))),
		),
		"other wire types": slices.Concat(
			varint(1, 1),
			varint(2, 7),
			field(3, varint(1, 1)),
			field(2, varint(1, 1), varint(2, 2), varint(3, 3), field(4)),
		),
		"fixed32 and fixed64": []byte("\x0d1234\x1112345678\x1d1234"),
		"short fixed32":       []byte("\x0d123"),
		"short fixed64":       []byte("\x111234567"),
		"groups":              []byte("\x0b\x08\x01\x0c\x13\x1b\x1c\x14\x0a\x01a"),
		"an open group":       []byte("\x0b\x08\x01"),
		"the end of no group": []byte("\x0c"),
		"another group's end": []byte("\x0b\x14"),
		"deep groups":         nested,
		"deeper groups":       slices.Concat([]byte{0x7b}, nested, []byte{0x7c}),
		"reserved wire type":  []byte("\x0e"),
		"field 0":             []byte("\x02\x00"),
		"largest field":       varint(protowire.MaxValidNumber, 1),
		"too large a field":   protowire.AppendVarint(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), 1),
		"such in a group": slices.Concat(
			[]byte{0x7b},
			protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3),
			[]byte("\x01\x7c"),
		),
		"field beyond 32 bit": protowire.AppendVarint(protowire.AppendVarint(nil, 1<<35), 1),
		"field 1 and 2^32":    slices.Concat(protowire.AppendVarint(nil, (1<<32+1)<<3|2), []byte("\x01a")),
		"overlong tag":        []byte("\x8a\x80\x80\x80\x00\x01a"),
		"overlong length":     []byte("\x0a\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00a"),
		"overlong varint":     []byte("\x18\x81\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"),
		"varint of 65 bits":   []byte("\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
		"length of 64 bits":   []byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a"),
		"length of 63 bits":   []byte("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7fa"),
		"longer than it is":   []byte("\x0a\x7fshop"),
		"a malformed entry":   field(2, field(1, []byte{10, 9})),
		"a malformed limit":   field(2, field(2, field(3, []byte{8}))),
		"a malformed addend":  field(2, field(3, []byte{8})),
		"not UTF-8": slices.Concat(
			field(1, []byte("\xff\xfeshop\xc3")),
			field(2, field(1, field(1, []byte("\x80")), field(2, []byte("a\xffb\xed\xa0\x80\xef\xbf\xbd")))),
		),
		"unknown, not UTF-8": slices.Concat(field(9, []byte("\xff")), field(2, field(1, field(3, []byte("\xff"))))),
		"then UTF-8":         slices.Concat(field(1, []byte("\xff")), field(1, []byte("shop"))),
	}
}

func TestDecodeAsProtobufDoes(t *testing.T) {
	for name, data := range requests(t) {
		t.Run(name, func(t *testing.T) {
			checkDecode(t, data)
			for i := range data[:min(len(data), 100)] { // cut, and with each byte changed
				checkDecode(t, data[:i])
				for _, b := range []byte{0x00, 0x7f, 0x80, 0xff, data[i] ^ 1, data[i] ^ 8} {
					changed := slices.Clone(data)
					changed[i] = b
					checkDecode(t, changed)
				}
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, data := range requests(f) {
		f.Add(data)
	}
	f.Fuzz(checkDecode)
}

// The codec leaves all other messages to protobuf.
func TestOtherMessagesAreProtobuf(t *testing.T) {
	want := request(descriptor("user=a"))
	data, err := Codec().Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &pb.RateLimitRequest{}
	if err := Codec().Unmarshal(data, got); err != nil || !proto.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if name := Codec().Name(); name != "proto" {
		t.Errorf("the codec's name is %q", name)
	}
	malformed := mem.BufferSlice{mem.SliceBuffer("\xff")}
	if err := Codec().Unmarshal(malformed, got); err == nil || !strings.Contains(err.Error(), "cannot parse") {
		t.Errorf("malformed: %v", err)
	}
}
