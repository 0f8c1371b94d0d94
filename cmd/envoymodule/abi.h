// The part of Envoy's ABI for dynamic modules (v0.2.0, Envoy 1.40) that this module uses, in our own declarations, and
// the types that C and Go share.
//
// Envoy's functions are weak symbols: a function that this Envoy lacks is NULL. The module checks this when it is
// loaded, because otherwise the first request that calls the function would end Envoy.
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A view of a text that another owner frees.
typedef struct { const char *p; size_t n; } weir_text;
typedef struct { const char *key; size_t key_n; const char *value; size_t value_n; } weir_header;

enum { WEIR_REQUEST_HEADERS = 0, WEIR_RESPONSE_HEADERS = 2 }; // header maps
enum { WEIR_SOURCE_ADDRESS = 24 };                            // attribute source.address, with port
enum { WEIR_DYNAMIC_METADATA = 0, WEIR_ROUTE_METADATA = 1 };  // sources of metadata
enum { WEIR_LOG_ERROR = 4 };

// Envoy's functions. A letter tells when Envoy 1.40 allows a call (see its
// source/extensions/filters/http/dynamic_modules):
// - M: on the main thread, only in http_filter_config_new.
// - A: on any thread, at any time.
// - S: on the stream's worker, from http_filter_request_headers until http_filter_stream_complete returns: in each hook
//   of the stream in between, and in http_filter_scheduled for every such stream of the worker. After that, Envoy
//   detaches the stream from the filter, and a call finds nothing or reads a null pointer. http_filter_destroy comes
//   later, from the worker's deferred deletions, and http_filter_scheduled may come before it. A text that Envoy
//   returns is valid until the hook returns, or until its source changes.
// - E: as S, and the call may end this stream and other streams of its connection. Their http_filter_stream_complete
//   runs within the call.
#define ENVOY __attribute__((weak)) extern
// A.
ENVOY void envoy_dynamic_module_callback_log(int level, weir_text message);
// M. Returns true if Envoy only validates its configuration.
ENVOY bool envoy_dynamic_module_callback_is_validation_mode(void);
// M. 0 means unknown.
ENVOY uint32_t envoy_dynamic_module_callback_get_concurrency(void);
// S. Every hook can read request headers; http_filter_response_headers and later hooks can read response headers. The
// call returns false if the header is absent.
ENVOY bool envoy_dynamic_module_callback_http_get_header(void *filter, int map, weir_text key, weir_text *value, size_t index, size_t *count);
// S, before the headers are forwarded: for response headers, in http_filter_response_headers. Envoy copies the texts.
// It adds no empty value.
ENVOY bool envoy_dynamic_module_callback_http_add_header(void *filter, int map, weir_text key, weir_text value);
// S. May return false without setting value.
ENVOY bool envoy_dynamic_module_callback_http_filter_get_attribute_string(void *filter, int attribute, weir_text *value);
// S. Returns false without a route, or if the route's cluster no longer exists.
ENVOY bool envoy_dynamic_module_callback_http_get_cluster_name(void *filter, weir_text *name);
// E, once, before the response has begun: in http_filter_request_headers, or while that has stopped the request. The
// response passes http_filter_response_headers of other filters, but not of this one. Envoy copies the texts.
ENVOY void envoy_dynamic_module_callback_http_send_response(void *filter, uint32_t status, weir_header *headers, size_t n, weir_text body, weir_text details);
// S, both. They return false without setting value if the value is absent or has the other type.
ENVOY bool envoy_dynamic_module_callback_http_get_metadata_string(void *filter, int source, weir_text ns, weir_text key, weir_text *value);
ENVOY bool envoy_dynamic_module_callback_http_get_metadata_number(void *filter, int source, weir_text ns, weir_text key, double *value);
// S. It invalidates texts of that namespace's metadata.
ENVOY void envoy_dynamic_module_callback_http_set_dynamic_metadata_struct(void *filter, weir_text ns, weir_text wire);
// S.
ENVOY void *envoy_dynamic_module_callback_http_filter_scheduler_new(void *filter);
// On any thread, until the stream is complete: see weir_worker.lock. Otherwise Envoy might drop the last reference to
// the filter during the call, and destroy it on this thread. The worker owns the dispatcher.
ENVOY void envoy_dynamic_module_callback_http_filter_scheduler_commit(void *scheduler, uint64_t event);
// A, once.
ENVOY void envoy_dynamic_module_callback_http_filter_scheduler_delete(void *scheduler);
// E, once, after http_filter_request_headers has stopped the request.
ENVOY void envoy_dynamic_module_callback_http_filter_continue_decoding(void *filter);
// S. The configuration is valid until the hook returns, because a route may be removed before its stream ends.
ENVOY const void *envoy_dynamic_module_callback_get_most_specific_route_config(void *filter);
// M.
ENVOY int envoy_dynamic_module_callback_http_filter_config_define_counter(void *config, weir_text name, weir_text *labels, size_t n, size_t *id);
// S.
ENVOY int envoy_dynamic_module_callback_http_filter_increment_counter(void *filter, size_t id, weir_text *labels, size_t n, uint64_t by);

// Outcomes, in the order of Go's embedded.Outcome.
enum { WEIR_NOT_LIMITED, WEIR_OK, WEIR_OVER_LIMIT, WEIR_FAILED };
enum { WEIR_BOTH, WEIR_INTERNAL, WEIR_EXTERNAL }; // types of requests that a filter limits
// Envoy's counters of a filter. The first ones are for the outcomes from WEIR_OK on.
enum { WEIR_COUNT_ALLOWED = WEIR_FAILED, WEIR_COUNTERS };

// A header that Go needs. Its name is in lower case.
typedef struct { int map; weir_text name; } weir_header_name;

// A metadata key that Go needs. If a call asks for text and the value is a number, or the other way round, Envoy logs
// an error, so was_text is the type to ask for first.
typedef struct {
  int source;
  weir_text ns, key;
  bool may_be_number;
  atomic_bool was_text;
} weir_metadata_key;

// The parts of a request that Go needs in one phase. Go writes them, C reads them.
typedef struct {
  bool is_empty; // without rate_limits
  bool remote; // whether to read the client's address
  bool destination; // whether to read the cluster's name
  size_t headers_n, metadata_n;
  weir_header_name *headers;
  weir_metadata_key *metadata;
} weir_reads;

// A filter_config of a filter or a route. Envoy has one reference. For a route, each stream that needs it at its end
// has another one.
typedef struct {
  atomic_int refs;
  uint64_t id; // the ID in Go
  weir_reads on_request, on_stream_done;
  int request_type;        // of a filter: in the order of Go's embedded.RequestType
  bool resource_exhausted; // of a filter: the gRPC status of denied requests
  weir_text stat_prefix;   // of a filter
  bool counts; // whether Envoy has the counters
  size_t counter[WEIR_COUNTERS];
} weir_config;

// A value of headers[header].
typedef struct { size_t header; weir_text text; } weir_value;

// The value of metadata[key], text unless is_number.
typedef struct { size_t key; bool is_number; double number; weir_text text; } weir_metadata_value;

// The parts of a request that Go reads. They are valid until the hook returns.
typedef struct {
  const weir_value *values;
  size_t values_n;
  const weir_metadata_value *metadata;
  size_t metadata_n;
  weir_text remote, destination; // p is NULL if there is none
  void *envoy;
} weir_request;

enum { WEIR_HEADERS = 64, WEIR_TEXT = 1024 };

// An answer. Go fills it in; C frees text unless it is room. text has the name and value of each header, then the body,
// then the dynamic metadata.
typedef struct {
  int outcome;
  uint32_t status; // 0: Envoy forwards the request
  size_t headers;
  uint32_t lengths[2 * WEIR_HEADERS]; // of name, value, name, value ..., in bytes
  size_t body, metadata;
  weir_text details; // static
  char *text;
  char room[WEIR_TEXT];
} weir_answer;

// The data that a worker shares with Go's threads. It is never freed.
typedef struct weir_worker {
  struct weir_worker *other; // the worker that was created before
  // The lock is held briefly: to change carrier, to commit on another thread, and to take the answers.
  pthread_mutex_t lock;
  // New answers since the last event, latest first. Go prepends them without the lock.
  _Atomic(struct weir_waiting *) answered;
  // The request whose scheduler has a pending event, or NULL. The event delivers all answers.
  _Atomic(struct weir_waiting *) carrier;
  bool unsent; // used only by the worker: whether requests wait for weirSend
} weir_worker;

enum { WEIR_PENDING, WEIR_ANSWERED, WEIR_GONE }; // states of weir_waiting

// A request that is decided later. Envoy's filter has one reference, and Go has one until the worker has the answer.
typedef struct weir_waiting {
  atomic_int refs;
  atomic_int state;
  weir_worker *worker;
  struct weir_waiting *next; // in answered
  void *scheduler;
  void *envoy; // the filter; used only by the worker, as are stream and left
  void *stream;
  bool left; // whether the stream has ended, or the answer was applied
  uint64_t id; // the ID in Go for cancelling; 0 if state is sufficient
  weir_answer answer;
} weir_waiting;

// weir_wait begins waiting, on the request's worker.
weir_waiting *weir_wait(void *envoy);
// weir_wake makes the worker apply its answers. It may run on any thread.
void weir_wake(weir_worker *worker);
// weir_unref drops a reference.
void weir_unref(weir_waiting *w);
// weir_log writes into Envoy's log.
void weir_log(int level, const char *p, size_t n);

#endif
