// A host for libweir.so that is not Envoy. It has the functions that the module calls, and calls the module's hooks as
// Envoy's workers do, with requests of all shapes that end at any time. With -fsanitize=address,undefined it detects
// memory errors in hooks.c and in calls to and from Go. It frees memory passed to the module as soon as the hook
// returns, as Envoy may, to detect late reads. A call for an ended stream ends the program. As in Envoy 1.40, a stream
// may end within a call of the module, and its filter is destroyed later, with events in between.
//
// usage: driver LIBRARY FILTER_CONFIG ROUTE_CONFIG REQUESTS SEED
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { const char *p; size_t n; } text;
typedef struct { const char *key; size_t key_n; const char *value; size_t value_n; } header;

#define EXPORT __attribute__((visibility("default")))
#define CHECK(is, ...) do { if (!(is)) { fprintf(stderr, "driver: " __VA_ARGS__); fputc('\n', stderr); abort(); } } while (0)

enum { CONTINUE = 0, STOP = 1, STOP_ALL_AND_WATERMARK = 4, REQUEST_HEADERS = 0 };
enum { MAX_HEADERS = 300, MAX_STREAMS = 64, WORKERS = 2, BIG = 60000 };

typedef struct scheduler scheduler;
typedef struct stream stream;

// A worker has a queue of events, like Envoy's dispatcher.
typedef struct {
  pthread_t thread;
  pthread_mutex_t lock;
  scheduler *first;
  bool gone;
  unsigned seed;
  int requests;
  stream *live[MAX_STREAMS], *dying[MAX_STREAMS]; // dying: filters that are not destroyed yet
  int dying_n;
} worker;

// A stream is the filter pointer in the module.
struct stream {
  worker *of;
  const void *module; // the module's filter
  const void *route;
  header headers[MAX_HEADERS]; // of the request
  int headers_n;
  scheduler *scheduler;
  bool gone, waits, continued, has_metadata;
  uint32_t status;
};

// A scheduler outlives its stream: a late event is dropped.
struct scheduler {
  stream *_Atomic s;
  stream *filter; // NULL after it was destroyed
  worker *of;
  atomic_int refs; // the module, the stream and the event
  scheduler *next;
  bool queued;
};

static atomic_long passed, denied, waited, late, aborted;

// Memory for the hook that runs on this thread.
static _Thread_local void *lent[4096];
static _Thread_local int lent_n;

static text lend(const char *p, size_t n) {
  char *copy = malloc(n); // of exact length, to detect reads beyond it
  CHECK(lent_n < 4096 && (copy || !n), "too much is lent");
  memcpy(copy, p, n);
  lent[lent_n++] = copy;
  return (text){copy, n};
}

static void take_back(void) {
  while (lent_n) free(lent[--lent_n]);
}

// touch reads a whole text.
static _Thread_local volatile size_t sink;
static void touch(const char *p, size_t n) {
  for (size_t i = 0; i < n; i++) sink += (unsigned char)p[i];
}

// Waiting streams that got their answers in the current event, which may bring answers for several.
static _Thread_local stream *answered[MAX_STREAMS];
static _Thread_local int answered_n;

static void note_answer(stream *s) {
  if (!s->waits) return; // answered in its own hook
  CHECK(answered_n < MAX_STREAMS, "too many answers");
  answered[answered_n++] = s;
}

static stream *of(void *filter) {
  stream *s = filter;
  CHECK(s && !s->gone, "a call for a stream that is gone");
  CHECK(pthread_equal(pthread_self(), s->of->thread), "a call on another thread than the stream's");
  return s;
}

EXPORT void envoy_dynamic_module_callback_log(int level, text m) { fprintf(stderr, "log %d: %.*s\n", level, (int)m.n, m.p); }
EXPORT bool envoy_dynamic_module_callback_is_validation_mode(void) { return false; }
EXPORT bool envoy_dynamic_module_callback_http_get_header(void *filter, int map, text key, text *value, size_t index, size_t *count) {
  stream *s = of(filter);
  size_t n = 0;
  *value = (text){NULL, 0};
  touch(key.p, key.n);
  for (int i = 0; map == REQUEST_HEADERS && i < s->headers_n; i++) {
    if (s->headers[i].key_n != key.n || memcmp(s->headers[i].key, key.p, key.n)) continue;
    if (n++ == index) *value = lend(s->headers[i].value, s->headers[i].value_n);
  }
  if (count) *count = n;
  return index < n;
}
EXPORT bool envoy_dynamic_module_callback_http_add_header(void *filter, int map, text key, text value) {
  of(filter);
  touch(key.p, key.n), touch(value.p, value.n);
  return true;
}
EXPORT bool envoy_dynamic_module_callback_http_set_header(void *filter, int map, text key, text value) {
  return envoy_dynamic_module_callback_http_add_header(filter, map, key, value);
}
EXPORT bool envoy_dynamic_module_callback_http_filter_get_attribute_string(void *filter, int attribute, text *value) {
  of(filter);
  *value = lend("10.1.2.3:4567", 13);
  return true;
}
EXPORT bool envoy_dynamic_module_callback_http_get_cluster_name(void *filter, text *name) {
  of(filter);
  *name = lend("upstream", 8);
  return true;
}
EXPORT bool envoy_dynamic_module_callback_http_get_metadata_string(void *filter, int source, text ns, text key, text *value) {
  of(filter);
  touch(ns.p, ns.n), touch(key.p, key.n);
  return false;
}
EXPORT bool envoy_dynamic_module_callback_http_get_metadata_number(void *filter, int source, text ns, text key, double *value) {
  touch(ns.p, ns.n), touch(key.p, key.n);
  if (!of(filter)->has_metadata) return false;
  *value = 1;
  return true;
}
EXPORT void envoy_dynamic_module_callback_http_set_dynamic_metadata_struct(void *filter, text ns, text wire) {
  touch(ns.p, ns.n), touch(wire.p, wire.n);
  of(filter)->has_metadata = true;
}
static void maybe_end(stream *s);
EXPORT void envoy_dynamic_module_callback_http_send_response(void *filter, uint32_t status, header *headers, size_t n, text body, text details) {
  stream *s = of(filter);
  CHECK(!s->status && !s->continued, "a second answer");
  for (size_t i = 0; i < n; i++) touch(headers[i].key, headers[i].key_n), touch(headers[i].value, headers[i].value_n);
  touch(body.p, body.n), touch(details.p, details.n);
  s->status = status;
  note_answer(s);
  maybe_end(s);
}
EXPORT void *envoy_dynamic_module_callback_http_filter_scheduler_new(void *filter) {
  stream *s = of(filter);
  CHECK(!s->scheduler, "a second scheduler");
  scheduler *c = s->scheduler = calloc(1, sizeof *c);
  atomic_init(&c->s, s);
  c->filter = s;
  atomic_init(&c->refs, 2);
  c->of = s->of;
  return c;
}
static void unref(scheduler *c) {
  if (atomic_fetch_sub(&c->refs, 1) == 1) free(c);
}
EXPORT void envoy_dynamic_module_callback_http_filter_scheduler_commit(void *p, uint64_t event) {
  scheduler *c = p;
  if (rand() % 8 == 0) usleep(50); // so that streams can end meanwhile
  CHECK(atomic_load(&c->s), "a commit for a stream that is gone: its dispatcher may be, too");
  CHECK(!c->of->gone, "a commit on a dispatcher that is gone");
  atomic_fetch_add(&c->refs, 1);
  pthread_mutex_lock(&c->of->lock);
  CHECK(!c->queued, "a second commit before its event");
  c->queued = true;
  c->next = c->of->first;
  c->of->first = c;
  pthread_mutex_unlock(&c->of->lock);
}
EXPORT void envoy_dynamic_module_callback_http_filter_scheduler_delete(void *p) { unref(p); }
EXPORT void envoy_dynamic_module_callback_http_filter_continue_decoding(void *filter) {
  stream *s = of(filter);
  CHECK(!s->status && !s->continued && s->waits, "continued twice, or without need");
  s->continued = true;
  note_answer(s);
  maybe_end(s);
}
EXPORT const void *envoy_dynamic_module_callback_get_most_specific_route_config(void *filter) { return of(filter)->route; }
EXPORT int envoy_dynamic_module_callback_http_filter_config_define_counter(void *config, text name, text *labels, size_t n, size_t *id) {
  touch(name.p, name.n);
  *id = 7;
  return 0;
}
EXPORT int envoy_dynamic_module_callback_http_filter_increment_counter(void *filter, size_t id, text *labels, size_t n, uint64_t by) {
  of(filter);
  CHECK(id == 7, "counter %zu", id);
  return 0;
}

// The module's hooks.
static const char *(*program_init)(void);
static const void *(*config_new)(void *, text, text), *(*route_new)(text, text), *(*filter_new)(const void *, void *);
static void (*config_destroy)(const void *), (*route_destroy)(const void *), (*filter_destroy)(const void *);
static void (*stream_complete)(void *, const void *), (*on_scheduled)(void *, const void *, uint64_t);
static int (*request_headers)(void *, const void *, bool), (*response_headers)(void *, const void *, bool);

static const void *filter_config, *route_config;

static void add_header(stream *s, const char *key, const char *value, size_t n) {
  char *copy = malloc(n);
  memcpy(copy, value, n);
  s->headers[s->headers_n++] = (header){strdup(key), strlen(key), copy, n};
}

// shape sets the request headers: none, one, many, and empty or huge values or values with a NUL.
static void shape(stream *s, unsigned *seed) {
  static char big[BIG];
  memset(big, 'b', sizeof big);
  char value[32];
  switch (rand_r(seed) % 10) {
  case 0: break;
  case 1: add_header(s, "x-key", "", 0); break;
  case 2: add_header(s, "x-key", "nu\0l", 4); break;
  case 3: add_header(s, "x-key", big, sizeof big); break;
  case 4:
    for (int i = 0; i < MAX_HEADERS; i++) add_header(s, i % 2 ? "x-key" : "x-other", value, snprintf(value, sizeof value, "v%d", i));
    break;
  case 5: add_header(s, "content-type", "application/grpc", 16); // and as below
  // fall through
  default: add_header(s, "x-key", value, snprintf(value, sizeof value, "k%d", rand_r(seed) % 50)); break;
  }
}

static void respond(stream *s) {
  atomic_fetch_add(s->status ? &denied : &passed, 1);
  if (s->gone) return;
  CHECK(response_headers(s, s->module, false) == CONTINUE, "the response is stopped");
  take_back();
}

static stream *begin(worker *w) {
  stream *s = calloc(1, sizeof *s);
  s->of = w;
  s->module = filter_new(filter_config, s);
  CHECK(s->module, "no stream");
  if (rand_r(&w->seed) % 4 == 0) s->route = route_config;
  shape(s, &w->seed);
  if (rand_r(&w->seed) % 50 == 0) return s; // the stream ends before its headers arrive
  int next = request_headers(s, s->module, true);
  take_back();
  if (next == STOP_ALL_AND_WATERMARK) {
    s->waits = true;
    atomic_fetch_add(&waited, 1);
    return s;
  }
  CHECK(next == CONTINUE ? !s->status : next == STOP && s->status, "hook returned %d with status %u", next, s->status);
  respond(s);
  return s;
}

// end ends the stream, possibly within a call of the module.
static void end(stream *s) {
  if (s->gone) return;
  if (s->waits && !s->status && !s->continued) atomic_fetch_add(&aborted, 1);
  stream_complete(s, s->module);
  s->gone = true;
  if (s->scheduler) atomic_store(&s->scheduler->s, NULL);
}

// maybe_end ends the stream that the module has answered, or another stream of its connection.
static void maybe_end(stream *s) {
  stream *other = s->of->live[rand_r(&s->of->seed) % MAX_STREAMS];
  switch (rand_r(&s->of->seed) % 8) {
  case 0: end(s); break;
  case 1: if (other) end(other); break;
  }
}

static void destroy(stream *s) {
  filter_destroy(s->module);
  if (s->scheduler) {
    s->scheduler->filter = NULL;
    unref(s->scheduler);
  }
  for (int i = 0; i < s->headers_n; i++) free((void *)s->headers[i].key), free((void *)s->headers[i].value);
  if (rand_r(&s->of->seed) % 32) free(s); // keep some, to detect late calls
}

static void destroy_dying(worker *w) {
  while (w->dying_n) destroy(w->dying[--w->dying_n]);
}

// run_events runs the worker's events, like its dispatcher.
static void run_events(worker *w) {
  pthread_mutex_lock(&w->lock);
  scheduler *c = w->first;
  w->first = NULL;
  for (scheduler *q = c; q; q = q->next) q->queued = false;
  pthread_mutex_unlock(&w->lock);
  while (c) {
    scheduler *next = c->next;
    stream *s = c->filter;
    if (s) {
      if (s->gone) atomic_fetch_add(&late, 1);
      on_scheduled(s, s->module, 1);
      take_back();
      while (answered_n) respond(answered[--answered_n]);
    }
    unref(c);
    c = next;
  }
}

static void *work(void *arg) {
  worker *w = arg;
  w->thread = pthread_self();
  for (int i = 0; i < w->requests; i++) {
    int at = rand_r(&w->seed) % MAX_STREAMS;
    if (w->live[at]) { // whatever has become of it
      end(w->live[at]);
      take_back();
      w->dying[w->dying_n++] = w->live[at];
      w->live[at] = NULL;
    }
    w->live[at] = begin(w);
    if (rand_r(&w->seed) % 3 == 0) run_events(w);
    if (rand_r(&w->seed) % 3 == 0 || w->dying_n == MAX_STREAMS) destroy_dying(w);
    if (rand_r(&w->seed) % 20 == 0) usleep(300);
  }
  usleep(20000);
  run_events(w);
  destroy_dying(w);
  for (int i = 0; i < MAX_STREAMS; i++)
    if (w->live[i]) end(w->live[i]), take_back(), destroy(w->live[i]);
  run_events(w);
  w->gone = true; // the dispatcher ends before the module's last answers
  return NULL;
}

static const void *make_config(const char *config) {
  const void *c = config_new(&filter_config, lend("weir", 4), lend(config, strlen(config)));
  take_back();
  return c;
}

static const void *make_route(const char *config) {
  const void *c = route_new(lend("weir", 4), lend(config, strlen(config)));
  take_back();
  return c;
}

#define HOOK(of, name) \
  do { \
    *(void **)&of = dlsym(library, "envoy_dynamic_module_on_" name); \
    CHECK(of, "the library lacks %s", name); \
  } while (0)

int main(int argc, char **argv) {
  CHECK(argc == 6, "usage: driver LIBRARY FILTER_CONFIG ROUTE_CONFIG REQUESTS SEED");
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  CHECK(library, "%s", dlerror());
  HOOK(program_init, "program_init");
  HOOK(config_new, "http_filter_config_new");
  HOOK(config_destroy, "http_filter_config_destroy");
  HOOK(route_new, "http_filter_per_route_config_new");
  HOOK(route_destroy, "http_filter_per_route_config_destroy");
  HOOK(filter_new, "http_filter_new");
  HOOK(filter_destroy, "http_filter_destroy");
  HOOK(stream_complete, "http_filter_stream_complete");
  HOOK(on_scheduled, "http_filter_scheduled");
  HOOK(request_headers, "http_filter_request_headers");
  HOOK(response_headers, "http_filter_response_headers");
  CHECK(program_init(), "the module does not load");

  CHECK(!make_config("{\"no\": 1}") && !make_config("") && !make_route("[]"), "a wrong configuration is taken");
  CHECK((filter_config = make_config(argv[2])) && (route_config = make_route(argv[3])), "a configuration is refused");
  static worker workers[WORKERS];
  for (int i = 0; i < WORKERS; i++) {
    pthread_mutex_init(&workers[i].lock, NULL);
    workers[i].requests = atoi(argv[4]) / WORKERS;
    workers[i].seed = atoi(argv[5]) + i;
    CHECK(!pthread_create(&workers[i].thread, NULL, work, &workers[i]), "no thread");
  }
  for (int i = 0; i < 20; i++) { // listeners and routes are added and removed meanwhile
    const void *c = make_config(argv[2]), *r = make_route(argv[3]);
    CHECK(c && r, "a configuration is refused");
    usleep(2000);
    config_destroy(c);
    route_destroy(r);
  }
  for (int i = 0; i < WORKERS; i++) pthread_join(workers[i].thread, NULL);
  route_destroy(route_config);
  config_destroy(filter_config);
  printf("passed %ld denied %ld waited %ld aborted %ld late %ld\n", passed, denied, waited, aborted, late);
  fflush(stdout);
  return 0; // the module's destructor waits for closed instances
}
