// Package roce is the codec of RoCEv2 UD SENDs (IBA 1.4, annex A17): base
// transport header, datagram extended transport header, invariant CRC, and the
// GRH area of a receive. It is pure: no I/O, no state, no clock, and nothing
// in it allocates.
//
// # A datagram
//
//	UDP 4791 | BTH 12 | DETH 8 | payload | pad 0-3 | ICRC 4
//
// A datagram here is what UDP carries, BTH to ICRC. [ParseUDSend] checks it and
// cuts it up; [BTH.Put], [DETH.Put] and [PutICRC] write one into pieces that may
// lie apart, so that a payload is never copied.
//
// # The ICRC
//
// [ICRC] is the CRC-32 of IEEE 802.3 over a pseudo header (eight bytes of ones
// in place of the LRH, then the IP and UDP headers) and the datagram, with ones
// in place of what routers may change. It therefore covers IP addresses, UDP
// source port, lengths, the DF bit and the IPv4 identification; [Path] holds
// those. Go's assembly does the payload; the pseudo header, which lives on the
// stack and would escape from there, is done by a table of our own.
//
// # An identification that the receiver cannot see
//
// A UDP socket does not show the IPv4 identification. The CRC is linear over
// GF(2): the difference between the ICRC received and the one computed with
// identification 0 is the identification's own contribution, the polynomial
// id·x^n modulo the generator, with n known from the length. [Verify] divides
// it by x^n. A right datagram leaves 16 bits of identification and 16 bits of
// zero; so one in 2^16 of damaged datagrams passes, against one in 2^32 with
// the identification known and 64 in 2^32 for identifications 0 to 63, where
// UDP senders that set DF have theirs. [Match] tells which of them it was, for
// the caller to count or to refuse. The DF bit is taken as set.
//
// The same division by another power gives [SourceBehindNAT] the source address
// that the sender must have computed with.
//
// # Bit order
//
// The CRC is reflected: in a uint32 of this package bit 31 is the coefficient
// of x^0 and bit 0 that of x^31; bytes enter at the low end. On the wire the
// ICRC is little-endian (A17.3.3, as every known device has it).
package roce
