/*
 * altstack.c
 *	  Alternate signal stacks; see altstack.h.
 */
#include "common/altstack.h"

#include <signal.h>
#include <stdlib.h>

#define ALTERNATE_STACK ((size_t) 64 * 1024)

void *
dsv3_altstack_set(void)
{
	stack_t stack = {.ss_size = ALTERNATE_STACK};

	if (DSV3_HAVE_SANITIZER)
		return NULL;
	stack.ss_sp = malloc(ALTERNATE_STACK);
	if (stack.ss_sp != NULL && sigaltstack(&stack, NULL) != 0)
	{
		free(stack.ss_sp);
		return NULL;
	}
	return stack.ss_sp;
}

void
dsv3_altstack_drop(void *stack)
{
	stack_t none = {.ss_flags = SS_DISABLE};

	if (stack == NULL)
		return;
	(void) sigaltstack(&none, NULL);
	free(stack);
}
