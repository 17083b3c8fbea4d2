package ipoib

import "errors"

// Reasons to refuse a message. Every error of this package wraps one of them.
var (
	ErrTruncated = errors.New("truncated")                      // shorter than its length fields require
	ErrFormat    = errors.New("not of the expected format")     // a type, version or address length
	ErrChecksum  = errors.New("wrong checksum")                 // ICMPv6
	ErrHopLimit  = errors.New("hop limit is not 255")           // ND that crossed a router, RFC 4861 section 7.1
	ErrOption    = errors.New("bad option")                     // ND option of length 0, too long, or repeated
	ErrInvalid   = errors.New("addresses contradict the type")  // ND that receivers must discard
	ErrUnmapped  = errors.New("link-layer address not mapped")  // unknown to the Mapper
	ErrTooLong   = errors.New("translated message is too long") // for the limit given
)
