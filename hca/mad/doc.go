// Package mad is the codec of the management datagrams (MADs) with which a port
// asks its subnet administrator (SA): the common header, the header of the SA
// class, and the attributes ClassPortInfo, MCMemberRecord and PathRecord. It is
// pure: no I/O, no state, no clock, no allocation.
//
// # A datagram
//
//	MAD header 24 | RMPP header 12 | SM_Key 8 | AttributeOffset 2 | 2 | ComponentMask 8 | data 200
//
// All numbers are big-endian (IBA 1.4, 13.4.2 and 15.2.1). [SA.Put] writes the 56
// bytes before the data, with an RMPP header of zeros: a request for one record
// never needs more than one datagram. [SA.Parse] refuses an answer of several
// segments. The Put and Parse methods of the attributes work on the data, dst[DataOffset:].
//
// Put writes to a buffer of the caller and panics if that is too short. Values are
// truncated to the width of their fields, and reserved bits are sent as zero.
// Parse checks only the form, and ignores reserved bits, so it reads requests and
// answers. The Check methods say whether an answer of the SA can be used. All errors
// are [FieldError], which names the field and wraps [hca.ErrInvalid].
//
// # Masks
//
// A request names by the bits of its component mask the fields that matter
// (IBA 15.2.1.1). A field without its bit is ignored by the SA, which chooses a value.
package mad
