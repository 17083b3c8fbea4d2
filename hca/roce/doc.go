// Package roce is the codec of RoCEv2 UD SENDs (IBA 1.4, annex A17): base
// transport header, datagram extended transport header, invariant CRC, and the
// GRH area of a receive. It is pure: no I/O, no state, no clock, no allocation.
//
// # A datagram
//
//	UDP 4791 | BTH 12 | DETH 8 | payload | pad 0-3 | ICRC 4
//
// In this package a datagram is the UDP payload, from the BTH to the ICRC.
// [UDSend.Parse] checks and parses it. [BTH.Put], [DETH.Put] and [Sealer.Seal] write
// all but the payload and the padding.
//
// # The ICRC
//
// [ICRC] is the CRC-32 of IEEE 802.3 over a pseudo header (eight bytes of ones
// in place of the LRH, then the IP and UDP headers) and the datagram. Fields that
// routers may change are replaced by ones. The ICRC therefore covers the IP
// addresses, the UDP source port, the lengths, the DF bit and the IPv4
// identification. [Path] holds the addresses, the port and the identification.
// The CRC of the payload is computed by the assembly of hash/crc32. The pseudo
// header lives on the stack and would escape to the heap there, so a table in this
// package computes its CRC. A [Sealer] and a [Verifier] compute it once for all datagrams
// of a train.
//
// # An identification that the receiver cannot see
//
// A UDP socket does not report the IPv4 identification. The CRC is linear over
// GF(2): the difference between the received ICRC and the one computed with
// identification 0 is the contribution of the identification, the polynomial
// id·x^n modulo the generator, where n follows from the length. [Verifier.Verify] divides
// the difference by x^n. For an undamaged datagram the result is 16 bits of
// identification and 16 zero bits. A damaged datagram passes with probability
// 2^-16, compared with 2^-32 if the identification is known, and 64 in 2^32 for
// the identifications 0 to 63, which UDP senders that set DF use. [Match] reports
// which of these cases applied, so that the caller can count or refuse it. The DF
// bit is assumed to be set.
//
// With another power of x the same division yields the source address that the
// sender must have used, see [SourceBehindNAT].
//
// # Bit order
//
// The CRC is reflected: in a uint32 of this package, bit 31 is the coefficient
// of x^0 and bit 0 that of x^31; bytes enter at the low end. On the wire the
// ICRC is little-endian (A17.3.3, and in practice on every known device).
package roce
