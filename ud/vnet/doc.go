// Package vnet is the codec of struct virtio_net_hdr (linux/virtio_net.h, and
// virtio 1.2 section 5.1.6), the header that stands before every frame of a TAP
// opened with IFF_VNET_HDR. It is pure and allocates nothing.
//
// The header says what the two sides have left for each other to do: the host
// may leave a checksum to be filled in, or give a large frame that is still to be
// segmented; towards the host it may say that a checksum was verified.
//
//	[flags 1][gso_type 1][hdr_len 2][gso_size 2][csum_start 2][csum_offset 2]
//
// Its integers are in the byte order of the host: that is what a TAP uses unless
// told otherwise by TUNSETVNETLE or TUNSETVNETBE. The two bytes num_buffers of
// the longer struct virtio_net_hdr_mrg_rxbuf are not there: a TAP has a header of
// 10 bytes unless told otherwise by TUNSETVNETHDRSZ.
package vnet
