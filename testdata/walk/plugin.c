// A library whose constructor leaves a mark in the program.
extern volatile long loaded;

__attribute__((constructor)) static void begin(void) { loaded = 42; }

int plugin_function(int n) { return n + 1; }
