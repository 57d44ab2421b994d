/*
 * version.h
 *	  The product's version: the executable, the library and the control file agree (a test compares them).
 */
#ifndef DSV3_VERSION_H
#define DSV3_VERSION_H

#define DSV3_VERSION "1.0"

#endif /* DSV3_VERSION_H */
