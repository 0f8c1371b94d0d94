// What this module uses of Envoy's ABI for dynamic modules (v0.2.0, Envoy 1.40), in declarations of our own, and what C
// and Go share.
//
// Envoy's functions are weak symbols. One that this Envoy lacks is NULL, which is found when the module is loaded.
// Otherwise the first request that needs it would end Envoy.
#ifndef WEIR_ABI_H
#define WEIR_ABI_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A view of text that somebody else owns.
typedef struct { const char *p; size_t n; } weir_text;
typedef struct { const char *key; size_t key_n; const char *value; size_t value_n; } weir_header;

enum { WEIR_REQUEST_HEADERS = 0, WEIR_RESPONSE_HEADERS = 2 }; // header maps
enum { WEIR_SOURCE_ADDRESS = 24 };                            // attribute source.address, with port
enum { WEIR_DYNAMIC_METADATA = 0, WEIR_ROUTE_METADATA = 1 };  // sources of metadata
enum { WEIR_LOG_ERROR = 4 };

// Envoy's functions, and when Envoy 1.40 allows a call (source/extensions/filters/http/dynamic_modules there):
// - M: on the main thread, in http_filter_config_new alone.
// - A: on any thread, at any time.
// - S: on the worker of the stream, from http_filter_request_headers until http_filter_stream_complete returns: in each
//   hook of the stream between the two, and in http_filter_scheduled for every stream of the worker that is between
//   them. After that, Envoy takes the stream from the filter, and a call finds nothing or reads a null pointer.
//   http_filter_destroy comes later, from the worker's deferred deletions, and http_filter_scheduled may come before
//   it. A text that Envoy returns is valid until the hook returns, or what the text is part of changes.
// - E: as S, and the call may end this stream, and others of its connection. Their http_filter_stream_complete runs
//   within the call.
#define ENVOY __attribute__((weak)) extern
// A.
ENVOY void envoy_dynamic_module_callback_log(int level, weir_text message);
// M. Envoy only checks its configuration.
ENVOY bool envoy_dynamic_module_callback_is_validation_mode(void);
// M. 0 is no number.
ENVOY uint32_t envoy_dynamic_module_callback_get_concurrency(void);
// S. Request headers can be read in every hook, response headers from http_filter_response_headers on. The call returns
// false if there is no such header.
ENVOY bool envoy_dynamic_module_callback_http_get_header(void *filter, int map, weir_text key, weir_text *value, size_t index, size_t *count);
// S, before the headers are sent on: those of the response in http_filter_response_headers. Envoy copies the texts, and
// adds no empty value.
ENVOY bool envoy_dynamic_module_callback_http_add_header(void *filter, int map, weir_text key, weir_text value);
// S. It may leave value as it was, and then returns false.
ENVOY bool envoy_dynamic_module_callback_http_filter_get_attribute_string(void *filter, int attribute, weir_text *value);
// S. false without a route, or if its cluster is gone.
ENVOY bool envoy_dynamic_module_callback_http_get_cluster_name(void *filter, weir_text *name);
// E, once, before the response has begun: in http_filter_request_headers or while that has stopped the request. The
// response passes http_filter_response_headers of other filters, not of this one. Envoy copies the texts.
ENVOY void envoy_dynamic_module_callback_http_send_response(void *filter, uint32_t status, weir_header *headers, size_t n, weir_text body, weir_text details);
// S, both. If there is no such value, or it has the other type, they return false and leave value as it was.
ENVOY bool envoy_dynamic_module_callback_http_get_metadata_string(void *filter, int source, weir_text ns, weir_text key, weir_text *value);
ENVOY bool envoy_dynamic_module_callback_http_get_metadata_number(void *filter, int source, weir_text ns, weir_text key, double *value);
// S. It ends texts of metadata of that namespace.
ENVOY void envoy_dynamic_module_callback_http_set_dynamic_metadata_struct(void *filter, weir_text ns, weir_text wire);
// S.
ENVOY void *envoy_dynamic_module_callback_http_filter_scheduler_new(void *filter);
// On any thread, until the stream is complete: see weir_worker.lock. Envoy may hold the last reference to the filter
// during the call, and would destroy it on this thread. The dispatcher goes with the worker.
ENVOY void envoy_dynamic_module_callback_http_filter_scheduler_commit(void *scheduler, uint64_t event);
// A, once.
ENVOY void envoy_dynamic_module_callback_http_filter_scheduler_delete(void *scheduler);
// E, once, after http_filter_request_headers has stopped the request.
ENVOY void envoy_dynamic_module_callback_http_filter_continue_decoding(void *filter);
// S. The configuration is valid until the hook returns: a route may be gone before its stream.
ENVOY const void *envoy_dynamic_module_callback_get_most_specific_route_config(void *filter);
// M.
ENVOY int envoy_dynamic_module_callback_http_filter_config_define_counter(void *config, weir_text name, weir_text *labels, size_t n, size_t *id);
// S.
ENVOY int envoy_dynamic_module_callback_http_filter_increment_counter(void *filter, size_t id, weir_text *labels, size_t n, uint64_t by);

// Outcomes, in the order of Go's embedded.Outcome.
enum { WEIR_NOT_LIMITED, WEIR_OK, WEIR_OVER_LIMIT, WEIR_FAILED };
enum { WEIR_BOTH, WEIR_INTERNAL, WEIR_EXTERNAL }; // requests that a filter limits
// Envoy's counters of a filter: the first ones are those of the outcomes from WEIR_OK on.
enum { WEIR_COUNT_ALLOWED = WEIR_FAILED, WEIR_COUNTERS };

// A header that Go needs: its name is in lower case.
typedef struct { int map; weir_text name; } weir_header_name;

// A key of metadata that Go needs. Envoy logs an error if it is asked for text and the value is a number, and the other
// way round: was_text says what to ask for first.
typedef struct {
  int source;
  weir_text ns, key;
  bool may_be_number;
  atomic_bool was_text;
} weir_metadata_key;

// What Go needs of a request at one moment. Go makes it, C reads it.
typedef struct {
  bool is_empty;    // no rate_limits
  bool remote;      // the client's address
  bool destination; // the cluster's name
  size_t headers_n, metadata_n;
  weir_header_name *headers;
  weir_metadata_key *metadata;
} weir_reads;

// A filter_config, of a filter or of a route. Envoy has one reference, and for a route each stream that needs it at its
// end.
typedef struct {
  atomic_int refs;
  uint64_t id; // Go's
  weir_reads on_request, on_stream_done;
  int request_type;        // of a filter: in the order of Go's embedded.RequestType
  bool resource_exhausted; // of a filter: the gRPC status of denied requests
  weir_text stat_prefix;   // of a filter
  bool counts; // Envoy has the counters
  size_t counter[WEIR_COUNTERS];
} weir_config;

// A value of headers[header].
typedef struct { size_t header; weir_text text; } weir_value;

// The value of metadata[key], text unless is_number.
typedef struct { size_t key; bool is_number; double number; weir_text text; } weir_metadata_value;

// What Go reads of a request. It is valid until the hook returns.
typedef struct {
  const weir_value *values;
  size_t values_n;
  const weir_metadata_value *metadata;
  size_t metadata_n;
  weir_text remote, destination; // p is NULL if there is none
  void *envoy;
} weir_request;

enum { WEIR_HEADERS = 64, WEIR_TEXT = 1024 };

// An answer: Go fills it, C frees text if it is not the room. text has each header's name and value, then the body,
// then the dynamic metadata.
typedef struct {
  int outcome;
  uint32_t status; // 0: the request goes on
  size_t headers;
  uint32_t lengths[2 * WEIR_HEADERS]; // of name, value, name, value ...
  size_t body, metadata;
  weir_text details; // a constant
  char *text;
  char room[WEIR_TEXT];
} weir_answer;

// What a worker and the threads of Go share. It lives as long as the process.
typedef struct weir_worker {
  struct weir_worker *other; // the worker that came before
  // The lock is held for a moment: by whoever changes carrier, while another thread commits, and to take the answers.
  pthread_mutex_t lock;
  // Answers that came since the last event. Go puts them in front, without the lock.
  _Atomic(struct weir_waiting *) answered;
  // The request by whose scheduler an event is under way; NULL if none is. The event brings all answers.
  _Atomic(struct weir_waiting *) carrier;
  bool unsent; // of the worker alone: requests wait for weirSend
} weir_worker;

enum { WEIR_PENDING, WEIR_ANSWERED, WEIR_GONE }; // states of weir_waiting

// A request that is decided later. Envoy's filter has one reference. Go has the other, until the worker has the answer.
typedef struct weir_waiting {
  atomic_int refs;
  atomic_int state;
  weir_worker *worker;
  struct weir_waiting *next; // in answered
  void *scheduler;
  void *envoy;   // the filter; of the worker alone, as stream and left
  void *stream;
  bool left;     // the stream has ended, or has followed the answer
  uint64_t id;   // Go's, to cancel it; 0 if state says enough
  weir_answer answer;
} weir_waiting;

// weir_wait begins to wait, on the worker of the request.
weir_waiting *weir_wait(void *envoy);
// weir_wake has the worker follow its answers, on any thread.
void weir_wake(weir_worker *worker);
// weir_unref drops a reference.
void weir_unref(weir_waiting *w);
// weir_log writes into Envoy's log.
void weir_log(int level, const char *p, size_t n);

#endif
