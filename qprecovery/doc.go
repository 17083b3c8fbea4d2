// Package qprecovery decides what is rebuilt when something broke. It is pure:
// time is passed in, events go in, actions come out.
package qprecovery
