/*
 * altstack.h
 *	  A stack for signal handlers of a thread, so that the handler of a crash can run when the thread's own stack is used up.
 */
#ifndef DSV3_ALTSTACK_H
#define DSV3_ALTSTACK_H

/* A sanitizer brings its own stacks and handlers. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define DSV3_HAVE_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define DSV3_HAVE_SANITIZER 1
#endif
#endif
#ifndef DSV3_HAVE_SANITIZER
#define DSV3_HAVE_SANITIZER 0
#endif

/* Give the calling thread an alternate stack, best effort. What it returns (NULL without) goes to the other before the thread ends;
 * the first thread of a process keeps it. */
extern void *dsv3_altstack_set(void);
extern void dsv3_altstack_drop(void *stack);

#endif /* DSV3_ALTSTACK_H */
