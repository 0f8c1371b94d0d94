//go:build envoymodule

// Envoy's event hooks. They are in C so that a request calls Go only once, with all data that its plan reads, and a
// request without limits does not call Go.
#include "abi.h"
#include "_cgo_export.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HOOK __attribute__((visibility("default")))

enum { CONTINUE = 0, STOP = 1, STOP_ALL_AND_WATERMARK = 4 }; // results of a hook for headers

// TEXT returns a view of a string literal.
#define TEXT(literal) ((weir_text){literal, sizeof literal - 1})

// A request in this filter.
typedef struct {
  const weir_config *config;
  weir_config *route; // has a reference; if NULL, the filter's config applies at the end, too
  weir_waiting *waiting; // for a request that was decided later
  weir_answer *kept; // headers for the response, for a request that was decided at once
  bool asked; // whether the request was seen here, so that its end counts
  bool obeyed; // whether the answer was applied
} stream;

static const char *const counter_names[WEIR_COUNTERS] = {"ok", "over_limit", "error", "failure_mode_allowed"};

void weir_log(int level, const char *p, size_t n) {
  weir_text text = {p, n};
  if (envoy_dynamic_module_callback_log) envoy_dynamic_module_callback_log(level, text);
}

#define NEEDED(name) {(const void *)envoy_dynamic_module_callback_##name, #name}

// Functions that every Envoy must have. Optional ones are checked before each call.
static const struct { const void *function; const char *name; } needed[] = {
    NEEDED(http_get_header), NEEDED(http_add_header), NEEDED(http_filter_get_attribute_string),
    NEEDED(http_get_metadata_string), NEEDED(http_get_metadata_number), NEEDED(http_set_dynamic_metadata_struct),
    NEEDED(http_get_cluster_name), NEEDED(http_send_response), NEEDED(http_filter_scheduler_new),
    NEEDED(http_filter_scheduler_commit), NEEDED(http_filter_scheduler_delete), NEEDED(http_filter_continue_decoding),
    NEEDED(get_most_specific_route_config), NEEDED(http_filter_config_define_counter),
    NEEDED(http_filter_increment_counter)};

HOOK const char *envoy_dynamic_module_on_program_init(void) {
  for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
    if (needed[i].function) continue;
    char line[256];
    int n = snprintf(line, sizeof line,
                     "weir: this Envoy lacks a function that the module needs; the module is built for Envoy 1.40: %s",
                     needed[i].name);
    weir_log(WEIR_LOG_ERROR, line, n);
    return NULL;
  }
  return "v0.2.0";
}

static void *exit_in_thread(void *unused) {
  weirExit();
  return NULL;
}

// Before Envoy ends, closed filters get time to stop. This runs on another thread: Envoy has removed this thread's
// signal stack, so a signal with which Go's runtime preempts its code would end the process.
__attribute__((destructor)) static void at_exit(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, exit_in_thread, NULL) == 0) pthread_join(thread, NULL);
}

HOOK const void *envoy_dynamic_module_on_http_filter_config_new(void *envoy, weir_text name, weir_text config) {
  bool check = envoy_dynamic_module_callback_is_validation_mode && envoy_dynamic_module_callback_is_validation_mode();
  uint32_t n = envoy_dynamic_module_callback_get_concurrency ? envoy_dynamic_module_callback_get_concurrency() : 0;
  weir_config *c = weirNewFilter((char *)config.p, config.n, check, n);
  if (!c) return NULL;
  c->counts = true;
  for (int i = 0; i < WEIR_COUNTERS; i++) {
    char name[128];
    int n = snprintf(name, sizeof name, "%.*s%s%s", (int)c->stat_prefix.n, c->stat_prefix.p ? c->stat_prefix.p : "",
                     c->stat_prefix.n ? "." : "", counter_names[i]);
    weir_text text = {name, n};
    if (envoy_dynamic_module_callback_http_filter_config_define_counter(envoy, text, NULL, 0, &c->counter[i]) != 0)
      c->counts = false;
  }
  return c;
}

static void drop_config(weir_config *c) {
  if (c && atomic_fetch_sub(&c->refs, 1) == 1) weirForget(c);
}

HOOK void envoy_dynamic_module_on_http_filter_config_destroy(const void *config) { drop_config((weir_config *)config); }

HOOK const void *envoy_dynamic_module_on_http_filter_per_route_config_new(weir_text name, weir_text config) {
  return weirNewRoute((char *)config.p, config.n);
}

HOOK void envoy_dynamic_module_on_http_filter_per_route_config_destroy(const void *config) {
  drop_config((weir_config *)config);
}

HOOK const void *envoy_dynamic_module_on_http_filter_new(const void *config, void *envoy) {
  stream *s = calloc(1, sizeof *s);
  if (s) s->config = config;
  return s;
}

static void free_text(weir_answer *a) {
  if (a->text != a->room) free(a->text);
}

void weir_unref(weir_waiting *w) {
  if (atomic_fetch_sub(&w->refs, 1) != 1) return;
  envoy_dynamic_module_callback_http_filter_scheduler_delete(w->scheduler);
  free_text(&w->answer);
  free(w);
}

static _Thread_local weir_worker *this_worker;
static _Atomic(weir_worker *) workers;

// worker returns the worker of this thread. It is never freed, because Go may access it after the thread has ended.
static weir_worker *worker(void) {
  if (!this_worker) {
    if (!(this_worker = calloc(1, sizeof *this_worker))) abort();
    pthread_mutex_init(&this_worker->lock, NULL);
    this_worker->other = atomic_load(&workers);
    while (!atomic_compare_exchange_weak(&workers, &this_worker->other, this_worker)) {}
  }
  return this_worker;
}

weir_waiting *weir_wait(void *envoy) {
  weir_waiting *w = malloc(sizeof *w);
  if (!w) abort();
  atomic_init(&w->refs, 2);
  atomic_init(&w->state, WEIR_PENDING);
  w->worker = worker();
  w->next = NULL;
  w->envoy = envoy;
  w->stream = NULL;
  w->left = false;
  w->id = 0;
  w->answer.text = w->answer.room;
  w->scheduler = envoy_dynamic_module_callback_http_filter_scheduler_new(envoy);
  return w;
}

// commit_event sends an event to a stream of the worker. The caller must hold its lock, so that the stream remains: a
// commit needs the worker's dispatcher, which Envoy may destroy after the stream.
static void commit_event(weir_worker *k, weir_waiting *carrier) {
  atomic_store(&k->carrier, carrier);
  envoy_dynamic_module_callback_http_filter_scheduler_commit(carrier->scheduler, 1);
}

// wake_locked sends an event if there are answers and a stream that waits for one. The caller must hold the lock.
static void wake_locked(weir_worker *k) {
  if (atomic_load(&k->carrier)) return;
  for (weir_waiting *w = atomic_load(&k->answered); w; w = w->next) {
    if (w->left) continue;
    commit_event(k, w);
    return;
  }
}

void weir_wake(weir_worker *k) {
  pthread_mutex_lock(&k->lock);
  wake_locked(k);
  pthread_mutex_unlock(&k->lock);
}

// leave stops waiting for an answer, and returns whether the answer has come. If this stream was to receive an event,
// another stream gets it.
static bool leave(stream *s) {
  weir_waiting *w = s->waiting;
  if (s->obeyed) return true;
  int pending = WEIR_PENDING;
  if (atomic_compare_exchange_strong(&w->state, &pending, WEIR_GONE) && w->id) weirCancel(w->id);
  if (!w->left) {
    weir_worker *k = w->worker;
    pthread_mutex_lock(&k->lock);
    w->left = true;
    bool carried = atomic_load(&k->carrier) == w;
    if (carried) {
      atomic_store(&k->carrier, NULL);
      wake_locked(k);
    }
    pthread_mutex_unlock(&k->lock);
    if (carried && k->unsent) {
      k->unsent = false;
      weirSend();
    }
  }
  return atomic_load(&w->state) == WEIR_ANSWERED;
}

HOOK void envoy_dynamic_module_on_http_filter_destroy(const void *module) {
  stream *s = (stream *)module;
  if (!s) return;
  if (s->waiting) {
    leave(s);
    weir_unref(s->waiting);
  }
  drop_config(s->route);
  if (s->kept) {
    free_text(s->kept);
    free(s->kept);
  }
  free(s);
}

static void count(void *envoy, const weir_config *c, int counter) {
  if (c->counts) envoy_dynamic_module_callback_http_filter_increment_counter(envoy, c->counter[counter], NULL, 0, 1);
}

// view sets views of an answer's headers, and returns the beginning of the body.
static const char *view(const weir_answer *a, weir_header *headers) {
  const char *p = a->text;
  for (size_t i = 0; i < a->headers; i++) {
    headers[i].key = p, headers[i].key_n = a->lengths[2 * i], p += a->lengths[2 * i];
    headers[i].value = p, headers[i].value_n = a->lengths[2 * i + 1], p += a->lengths[2 * i + 1];
  }
  return p;
}

// set_metadata sets the answer's dynamic metadata on the request.
static void set_metadata(void *envoy, const weir_answer *a) {
  if (!a->metadata) return;
  weir_header headers[WEIR_HEADERS];
  weir_text wire = {view(a, headers) + a->body, a->metadata};
  envoy_dynamic_module_callback_http_set_dynamic_metadata_struct(envoy, TEXT("envoy.filters.http.ratelimit"), wire);
}

static bool begins(weir_text text, weir_text with) {
  return text.n >= with.n && memcmp(text.p, with.p, with.n) == 0;
}

// request_header returns false if the request has no such header.
static bool request_header(void *envoy, weir_text name, weir_text *value) {
  size_t all;
  return envoy_dynamic_module_callback_http_get_header(envoy, WEIR_REQUEST_HEADERS, name, value, 0, &all);
}

// is_grpc reports whether Envoy responds to the request in gRPC's form.
static bool is_grpc(void *envoy) {
  weir_text type, grpc = TEXT("application/grpc");
  return request_header(envoy, TEXT("content-type"), &type) && begins(type, grpc) &&
         (type.n == grpc.n || type.p[grpc.n] == '+');
}

// grpc_status returns the gRPC status that Envoy sets for an HTTP status.
static const char *grpc_status(uint32_t status, bool exhausted) {
  if (exhausted) return "8"; // RESOURCE_EXHAUSTED
  switch (status) {
  case 400: return "13"; // INTERNAL
  case 401: return "16"; // UNAUTHENTICATED
  case 403: return "7";  // PERMISSION_DENIED
  case 404: return "12"; // UNIMPLEMENTED
  case 429: case 502: case 503: case 504: return "14"; // UNAVAILABLE
  default: return "2";   // UNKNOWN
  }
}

// add_grpc_status adds the gRPC status to the response to a gRPC request. Otherwise Envoy sets 0, success.
static size_t add_grpc_status(void *envoy, uint32_t status, bool exhausted, weir_header *headers, size_t n) {
  weir_text name = TEXT("grpc-status");
  if (!is_grpc(envoy)) return n;
  for (size_t i = 0; i < n; i++)
    if (headers[i].key_n == name.n && memcmp(headers[i].key, name.p, name.n) == 0) return n;
  const char *value = grpc_status(status, exhausted);
  headers[n] = (weir_header){name.p, name.n, value, strlen(value)};
  return n + 1;
}

// obey applies the answer, and returns whether Envoy forwards the request.
static bool obey(void *envoy, stream *s, const weir_answer *a) {
  const weir_config *filter = s->config;
  s->obeyed = true;
  set_metadata(envoy, a);
  if (a->outcome != WEIR_NOT_LIMITED) count(envoy, filter, a->outcome - WEIR_OK);
  if (a->outcome == WEIR_FAILED && !a->status) count(envoy, filter, WEIR_COUNT_ALLOWED);
  if (!a->status) return true;
  weir_header headers[WEIR_HEADERS + 1];
  weir_text body = {view(a, headers), a->body};
  bool exhausted = filter->resource_exhausted && a->outcome == WEIR_OVER_LIMIT;
  size_t n = add_grpc_status(envoy, a->status, exhausted, headers, a->headers);
  envoy_dynamic_module_callback_http_send_response(envoy, a->status, headers, n, body, a->details);
  return false;
}

// keep keeps the headers for the response to a request that is forwarded.
static void keep(stream *s, weir_answer *a) {
  if (a->status || !a->headers || !(s->kept = malloc(sizeof *a))) {
    free_text(a);
    return;
  }
  bool in_room = a->text == a->room;
  *s->kept = *a;
  if (in_room) s->kept->text = s->kept->room;
}

// A worker's memory for values of headers and of metadata.
static _Thread_local weir_value *values;
static _Thread_local size_t values_cap;
static _Thread_local weir_metadata_value *metadata_values;
static _Thread_local size_t metadata_cap;

// read_headers returns the number of values that it has read.
static size_t read_headers(void *envoy, const weir_reads *c) {
  size_t n = 0;
  for (size_t i = 0; i < c->headers_n; i++) {
    const weir_header_name *h = &c->headers[i];
    size_t all = 0;
    weir_text text;
    for (size_t k = 0; k == 0 || k < all; k++) {
      if (!envoy_dynamic_module_callback_http_get_header(envoy, h->map, h->name, &text, k, &all)) break;
      if (n == values_cap) {
        size_t cap = values_cap ? 2 * values_cap : 16;
        weir_value *more = realloc(values, cap * sizeof *more);
        if (!more) return n;
        values = more, values_cap = cap;
      }
      values[n].header = i;
      values[n++].text = text;
    }
  }
  return n;
}

static bool read_text(void *envoy, const weir_metadata_key *k, weir_metadata_value *v) {
  *v = (weir_metadata_value){.is_number = false};
  return envoy_dynamic_module_callback_http_get_metadata_string(envoy, k->source, k->ns, k->key, &v->text);
}

static bool read_number(void *envoy, const weir_metadata_key *k, weir_metadata_value *v) {
  *v = (weir_metadata_value){.is_number = true};
  return envoy_dynamic_module_callback_http_get_metadata_number(envoy, k->source, k->ns, k->key, &v->number);
}

// read_value returns false if the value is absent.
static bool read_value(void *envoy, weir_metadata_key *k, weir_metadata_value *v) {
  if (!k->may_be_number) return read_text(envoy, k, v);
  bool was_text = atomic_load_explicit(&k->was_text, memory_order_relaxed);
  if (was_text ? read_text(envoy, k, v) : read_number(envoy, k, v)) return true;
  if (!(was_text ? read_number(envoy, k, v) : read_text(envoy, k, v))) return false;
  atomic_store_explicit(&k->was_text, !was_text, memory_order_relaxed);
  return true;
}

// read_metadata returns the number of values that it has read.
static size_t read_metadata(void *envoy, const weir_reads *c) {
  if (metadata_cap < c->metadata_n) {
    weir_metadata_value *more = realloc(metadata_values, c->metadata_n * sizeof *more);
    if (!more) return 0;
    metadata_values = more, metadata_cap = c->metadata_n;
  }
  size_t n = 0;
  for (size_t i = 0; i < c->metadata_n; i++) {
    if (!read_value(envoy, &c->metadata[i], &metadata_values[n])) continue;
    metadata_values[n++].key = i;
  }
  return n;
}

// read_request reads the data that Go needs into the worker's memory.
static weir_request read_request(void *envoy, const weir_reads *c) {
  weir_request r = {.envoy = envoy};
  r.values_n = read_headers(envoy, c);
  r.values = values;
  r.metadata_n = read_metadata(envoy, c);
  r.metadata = metadata_values;
  if (c->remote &&
      !envoy_dynamic_module_callback_http_filter_get_attribute_string(envoy, WEIR_SOURCE_ADDRESS, &r.remote))
    r.remote.p = NULL;
  if (c->destination && !envoy_dynamic_module_callback_http_get_cluster_name(envoy, &r.destination)) r.destination.p = NULL;
  return r;
}

// is_limited reports whether the filter limits requests of this type.
static bool is_limited(void *envoy, const weir_config *filter) {
  if (filter->request_type == WEIR_BOTH) return true;
  weir_text value, yes = TEXT("true");
  bool internal = request_header(envoy, TEXT("x-envoy-internal"), &value) && value.n == yes.n && begins(value, yes);
  return internal == (filter->request_type == WEIR_INTERNAL);
}

// send_soon makes Go send the worker's new requests at the end of this turn of the event loop.
static void send_soon(weir_waiting *w) {
  weir_worker *k = w->worker;
  if (k->unsent) return;
  k->unsent = true;
  pthread_mutex_lock(&k->lock);
  if (!atomic_load(&k->carrier)) commit_event(k, w);
  pthread_mutex_unlock(&k->lock);
}

HOOK int envoy_dynamic_module_on_http_filter_request_headers(void *envoy, const void *module, bool end) {
  stream *s = (stream *)module;
  if (!s || !is_limited(envoy, s->config)) return CONTINUE;
  const weir_config *c = s->config, *route = envoy_dynamic_module_callback_get_most_specific_route_config(envoy);
  if (route) c = route;
  s->asked = true;
  if (route && !s->route) { // Envoy may remove the route before the stream ends
    s->route = (weir_config *)route;
    atomic_fetch_add(&s->route->refs, 1);
  }
  if (c->on_request.is_empty) return CONTINUE;
  weir_request r = read_request(envoy, &c->on_request);
  weir_answer a;
  a.outcome = WEIR_NOT_LIMITED, a.status = 0, a.headers = 0, a.body = 0, a.metadata = 0, a.text = a.room;
  s->waiting = weirDecide(s->config->id, route ? route->id : 0, &r, &a);
  if (s->waiting) {
    s->waiting->stream = s;
    send_soon(s->waiting);
    return STOP_ALL_AND_WATERMARK;
  }
  bool goes_on = obey(envoy, s, &a);
  keep(s, &a);
  return goes_on ? CONTINUE : STOP;
}

// An event is for the worker, whichever stream receives it: it sends requests and applies all answers.
HOOK void envoy_dynamic_module_on_http_filter_scheduled(void *envoy, const void *module, uint64_t event) {
  weir_worker *k = worker();
  if (k->unsent) {
    k->unsent = false;
    weirSend();
  }
  pthread_mutex_lock(&k->lock);
  atomic_store(&k->carrier, NULL);
  weir_waiting *last = atomic_exchange(&k->answered, NULL), *first = NULL;
  for (weir_waiting *next; last; last = next) { // reverse the order
    next = last->next, last->next = first, first = last;
  }
  pthread_mutex_unlock(&k->lock);
  for (weir_waiting *w = first, *next; w; w = next) {
    next = w->next;
    stream *s = w->stream;
    if (!w->left && s) { // else the stream has ended, or weirDecide panicked after weir_wait
      w->left = true;
      if (obey(w->envoy, s, &w->answer)) envoy_dynamic_module_callback_http_filter_continue_decoding(w->envoy);
    }
    weir_unref(w);
  }
}

// The stream has ended: charge the cost of its end, and release its hits. If the request ends before its answer has
// come, its end costs nothing, and Go releases its hits.
HOOK void envoy_dynamic_module_on_http_filter_stream_complete(void *envoy, const void *module) {
  stream *s = (stream *)module;
  if (!s || !s->asked) return;
  if (s->waiting && !leave(s)) return;
  const weir_config *c = s->route ? s->route : s->config;
  if (c->on_stream_done.is_empty) return;
  if (s->waiting && !s->obeyed) set_metadata(envoy, &s->waiting->answer); // the answer came too late to be applied
  weir_request r = read_request(envoy, &c->on_stream_done);
  weirStreamDone(s->config->id, s->route ? s->route->id : 0, &r);
}

HOOK int envoy_dynamic_module_on_http_filter_response_headers(void *envoy, const void *module, bool end) {
  stream *s = (stream *)module;
  if (!s) return CONTINUE;
  const weir_answer *a = s->kept;
  if (s->waiting && s->obeyed) a = &s->waiting->answer;
  if (!a || a->status || !a->headers) return CONTINUE;
  weir_header headers[WEIR_HEADERS];
  view(a, headers);
  for (size_t i = 0; i < a->headers; i++) {
    weir_text key = {headers[i].key, headers[i].key_n}, value = {headers[i].value, headers[i].value_n};
    envoy_dynamic_module_callback_http_add_header(envoy, WEIR_RESPONSE_HEADERS, key, value);
  }
  return CONTINUE;
}

// Envoy requires these hooks.
HOOK int envoy_dynamic_module_on_http_filter_request_body(void *envoy, const void *module, bool end) { return CONTINUE; }
HOOK int envoy_dynamic_module_on_http_filter_request_trailers(void *envoy, const void *module) { return CONTINUE; }
HOOK int envoy_dynamic_module_on_http_filter_response_body(void *envoy, const void *module, bool end) { return CONTINUE; }
HOOK int envoy_dynamic_module_on_http_filter_response_trailers(void *envoy, const void *module) { return CONTINUE; }
HOOK void envoy_dynamic_module_on_http_filter_http_callout_done(void *envoy, const void *module, uint64_t id, int result, void *headers, size_t n, void *body, size_t m) {}
HOOK void envoy_dynamic_module_on_http_filter_http_stream_headers(void *envoy, const void *module, uint64_t id, void *headers, size_t n, bool end) {}
HOOK void envoy_dynamic_module_on_http_filter_http_stream_data(void *envoy, const void *module, uint64_t id, const void *data, size_t n, bool end) {}
HOOK void envoy_dynamic_module_on_http_filter_http_stream_trailers(void *envoy, const void *module, uint64_t id, void *trailers, size_t n) {}
HOOK void envoy_dynamic_module_on_http_filter_http_stream_complete(void *envoy, const void *module, uint64_t id) {}
HOOK void envoy_dynamic_module_on_http_filter_http_stream_reset(void *envoy, const void *module, uint64_t id, int reason) {}
HOOK void envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(void *envoy, const void *module) {}
HOOK void envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(void *envoy, const void *module) {}
