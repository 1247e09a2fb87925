/* Ends at once, without a C library. */
void _start(void)
{
#if defined(__x86_64__)
	asm volatile("syscall" : : "a"(231), "D"(0)); /* exit_group */
#else
	register long nr asm("x8") = 94, status asm("x0") = 0;
	asm volatile("svc 0" : : "r"(nr), "r"(status));
#endif
	__builtin_unreachable();
}
