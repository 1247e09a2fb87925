/* A library with the variable by which threads tell profilers what they work on. */
__thread void *otel_thread_ctx_v1;
void publish(void *record) { otel_thread_ctx_v1 = record; }
