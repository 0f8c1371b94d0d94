// Package rls is Envoy's RateLimitService v3 on the wire.
//
// A request goes one way through six verbs: decode (the bytes), translate (what is asked, and is it askable), match
// (which rules that concerns), take (the store decides the hits of all descriptors as a whole), fold (one status for
// each descriptor) and report (the bytes of the response, its headers and its metadata). The package knows no files,
// no Redis and no Prometheus.
package rls

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/weir-ratelimit/weir/pkg/descriptors"
	"github.com/weir-ratelimit/weir/pkg/limiter"
)

// Defaults of Options.
const (
	// DefaultMaxDescriptors bounds the work of one request. Envoy's configuration decides how many descriptors
	// it sends, a handful as a rule, so that this only stops mistakes.
	DefaultMaxDescriptors = 128
	// DefaultMaxEntries bounds a descriptor's depth, which Envoy's configuration decides as well.
	DefaultMaxEntries = 32
	// DefaultMaxEntryBytes is above the 60 KiB that Envoy admits by default as a request's headers. A key or
	// value that is refused here is an error to Envoy, which lets the request pass by default: a client must
	// not be able to evade its limit by a long header.
	DefaultMaxEntryBytes = 64 << 10
	// DefaultMaxHeld bounds the answers that leaky_queue and max_wait hold back, each a goroutine and a stream
	// of a few KiB.
	DefaultMaxHeld = 10_000
)

// Options are a Service's parts and bounds. A zero bound stands for its default.
type Options struct {
	// Rules returns the rules in force: called once a request. A nil Set says that none are loaded yet.
	Rules func() *descriptors.Set
	// Store decides. How long it may take is its own to bound.
	Store limiter.Store
	// Local decides while Store fails, for limits with on_store_failure: local, by each one's share. Nil, for a
	// Store that never fails, lets their requests pass.
	Local limiter.Store
	// Boosts returns what stands for limits of the rules at the moment: called once a request. Nil, or a nil Boosts, is
	// nothing.
	Boosts func() *Boosts
	// Observer is told what was decided. Nil is none.
	Observer Observer
	// Watchers are shown every request that was decided.
	Watchers []Watcher
	// DynamicMetadata adds dynamic_metadata to every response, and not only where a matched rule has
	// `metadata`, and shows the descriptors with their values there.
	DynamicMetadata bool
	// LimitHeaders are the response headers that tell a client the limit that is nearest. The zero value is none.
	LimitHeaders LimitHeaders
	// MaxDescriptors is the most descriptors of a request.
	MaxDescriptors int
	// MaxEntries is the most entries of a descriptor.
	MaxEntries int
	// MaxEntryBytes is the most bytes of an entry's key, and of its value.
	MaxEntryBytes int
	// MaxHeld is the most answers that are held back at once. Requests that might have to wait beyond it are
	// denied without being charged.
	MaxHeld int
}

// LimitHeaders are the names of response headers: the limit in requests per window, how many remain, and the seconds
// until the counter is as new, or of a denied request until it would pass.
type LimitHeaders struct{ Limit, Remaining, Reset string }

func (o *Options) validate() error {
	var errs []error
	if o.Rules == nil {
		errs = append(errs, errors.New("rls: Options.Rules: must be set"))
	}
	if o.Store == nil {
		errs = append(errs, errors.New("rls: Options.Store: must be set"))
	}
	if h := o.LimitHeaders; h != (LimitHeaders{}) && (h.Limit == "" || h.Remaining == "" || h.Reset == "") {
		errs = append(errs, fmt.Errorf("rls: Options.LimitHeaders: must all be set, or none; got %+v", h))
	}
	bounds := []struct {
		name  string
		value *int
		def   int
	}{
		{"MaxDescriptors", &o.MaxDescriptors, DefaultMaxDescriptors},
		{"MaxEntries", &o.MaxEntries, DefaultMaxEntries},
		{"MaxEntryBytes", &o.MaxEntryBytes, DefaultMaxEntryBytes},
		{"MaxHeld", &o.MaxHeld, DefaultMaxHeld},
	}
	for _, b := range bounds {
		if *b.value < 0 {
			errs = append(errs, fmt.Errorf("rls: Options.%s: must be at least 1, or 0 for %d; got %d", b.name, b.def, *b.value))
		}
		if *b.value == 0 {
			*b.value = b.def
		}
	}
	if o.Observer == nil {
		o.Observer = unobserved{}
	}
	return errors.Join(errs...)
}

// Service answers Envoy. It is safe for concurrent use.
type Service struct {
	o       Options
	scratch sync.Pool // of *scratch
	holder  holder
	none    *limiter.Policy // lets nothing pass
}

// New checks the options.
func New(o Options) (*Service, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Service{o: o}
	s.holder.most = int64(o.MaxHeld)
	var err error
	s.none, err = limiter.NewPolicy(limiter.Params{Algorithm: limiter.FixedWindow, Window: time.Second})
	return s, err
}

// Register makes the service answer ShouldRateLimit on a server that has Codec, which decodes requests into the
// service's own memory.
func (s *Service) Register(on grpc.ServiceRegistrar) {
	file := pb.File_envoy_service_ratelimit_v3_rls_proto
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: pb.RateLimitService_ShouldRateLimit_FullMethodName}
	service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
	on.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: method, Handler: s.handler(info)}},
		Metadata:    file.Path(), // what reflection finds the service's messages by
	}, s)
}

// handler receives a request, and answers it through the server's interceptor.
func (s *Service) handler(info *grpc.UnaryServerInfo) grpc.MethodHandler {
	answer := func(ctx context.Context, req any) (any, error) {
		sc, ok := req.(*scratch)
		if !ok {
			return nil, status.Errorf(codes.Internal, "the request is a %T", req)
		}
		return s.shouldRateLimit(ctx, sc)
	}
	return func(_ any, ctx context.Context, receive func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
		sc := s.get()
		if err := receive(sc); err != nil {
			s.release(sc)
			return nil, err
		}
		if interceptor == nil {
			return answer(ctx, sc)
		}
		return interceptor(ctx, sc, info, answer)
	}
}

// shouldRateLimit decides a request as a whole and reports a status for each of its descriptors, in order.
//
// A descriptor without a limit (its domain is unknown, no rule matches, its rule has no limit, or its limit was
// replaced) is OK without current_limit; one that is `unlimited` has limit_remaining at its maximum as well.
// Otherwise its status is that of its tightest limit: one that does not fit, else the one with the least
// remaining, else the one with the longest wait. The code is OVER_LIMIT if that limit does not fit, whatever
// becomes of the request; only shadow mode keeps it OK. The overall code is OVER_LIMIT if a limit that is
// neither shadow nor quota does not fit, or if none of the quota limits of the request does.
//
// duration_until_reset is the time until the counter is as new, and for a status of OVER_LIMIT the time after
// which the same request would pass: it becomes X-RateLimit-Reset, which should name the same moment as the
// Retry-After that a denied response carries. In a fixed window the two are one. Where no wait helps, it is the
// time until the counter is as new, and there is no Retry-After. Both are rounded up to whole seconds.
//
// A denied request is told the Response of the first of the rules that deny it and have one, headers and body.
//
// current_limit.unit is the largest unit that the window is a multiple of, and unit_multiplier says how many of
// it, left out if 1. A window that is a multiple of no unit, as 1500ms, has unit UNKNOWN.
//
// While the store fails, each limit's on_store_failure stands for its answer, without duration_until_reset unless it is
// local.
//
// Errors are InvalidArgument for a request that cannot be asked, naming the field, Unavailable while no rules
// are loaded, and Canceled or DeadlineExceeded if the caller has gone.
func (s *Service) shouldRateLimit(ctx context.Context, sc *scratch) (any, error) {
	res, err := s.decide(ctx, sc)
	if err != nil {
		s.o.Observer.Rejected(status.Code(err))
		return nil, err
	}
	return res, nil
}

// decide answers the request and releases its scratch, before the answer is held back.
func (s *Service) decide(ctx context.Context, sc *scratch) (*reply, error) {
	rules := s.o.Rules()
	if rules == nil {
		s.release(sc)
		return nil, status.Error(codes.Unavailable, "no rules are loaded yet")
	}
	if err := sc.findHits(rules); err != nil {
		s.release(sc)
		return nil, err
	}
	if sc.mayWait() {
		return s.answerInTime(ctx, sc)
	}
	res, _, err := s.answer(ctx, sc)
	return res, err
}

// findHits finds the hits that the request makes.
func (sc *scratch) findHits(rules *descriptors.Set) error {
	if err := sc.translate(); err != nil {
		return err
	}
	domain := rules.Domain(sc.domain)
	if domain == nil {
		return nil
	}
	if err := sc.match(domain); err != nil {
		return err
	}
	sc.count()
	sc.boost()
	return nil
}

// answerInTime holds the answer back until the request may go on.
func (s *Service) answerInTime(ctx context.Context, sc *scratch) (*reply, error) {
	if !s.holder.reserve() {
		if err := s.refuse(ctx, sc); err != nil {
			s.release(sc)
			return nil, err
		}
		sc.fold()
		return s.finish(ctx, sc, false)
	}
	defer s.holder.free()
	res, longest, err := s.answer(ctx, sc)
	if err == nil && longest > 0 {
		err = wait(ctx, longest)
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// answer asks the store and says what that means, and how long the answer is to be held back.
func (s *Service) answer(ctx context.Context, sc *scratch) (*reply, time.Duration, error) {
	failed, err := s.take(ctx, sc)
	if err != nil {
		s.release(sc)
		return nil, 0, err
	}
	sc.fold()
	longest := sc.wait()
	res, err := s.finish(ctx, sc, failed)
	return res, longest, err
}

// finish reports what fold has found. The scratch is not used after it.
func (s *Service) finish(ctx context.Context, sc *scratch, failed bool) (*reply, error) {
	s.observe(sc, failed)
	s.watch(ctx, sc, failed)
	res, err := sc.report(failed)
	s.release(sc)
	if err != nil {
		return nil, status.Errorf(codes.Internal, "dynamic_metadata: %v", err)
	}
	return res, nil
}

// take asks the store once for all hits. failed says that the store did not answer and that the rules' own
// on_store_failure did. The error is that of a caller who has gone.
func (s *Service) take(ctx context.Context, sc *scratch) (failed bool, err error) {
	if len(sc.hits) == 0 {
		return false, nil
	}
	if err := ctx.Err(); err != nil {
		return false, status.FromContextError(err).Err()
	}
	err = s.o.Store.Take(ctx, sc.hits, sc.out)
	if err == nil {
		return false, nil
	}
	if gone := ctx.Err(); gone != nil {
		return false, status.FromContextError(gone).Err()
	}
	s.o.Observer.StoreFailed(err)
	s.standIn(ctx, sc)
	return true, nil
}

// get is a scratch for a request: one that release has kept, or a new one.
func (s *Service) get() *scratch {
	if sc, ok := s.scratch.Get().(*scratch); ok {
		return sc
	}
	return &scratch{o: &s.o}
}

// release makes the scratch ready for another request. It keeps nothing of this one alive.
func (s *Service) release(sc *scratch) {
	sc.reset()
	s.scratch.Put(sc)
}
