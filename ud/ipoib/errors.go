package ipoib

import "errors"

// Reasons why a message is refused. Errors of this package wrap one of them.
var (
	ErrTruncated = errors.New("truncated")                      // shorter than its own lengths say
	ErrFormat    = errors.New("not of the expected format")     // a type, version or address length
	ErrChecksum  = errors.New("wrong checksum")                 // ICMPv6
	ErrHopLimit  = errors.New("hop limit is not 255")           // ND that crossed a router, RFC 4861 section 7.1
	ErrOption    = errors.New("bad option")                     // ND option of length 0, or too long, or twice
	ErrInvalid   = errors.New("addresses contradict the type")  // ND that its receiver must discard
	ErrUnmapped  = errors.New("link-layer address not mapped")  // the Mapper does not know it
	ErrTooLong   = errors.New("translated message is too long") // for the limit given
)
