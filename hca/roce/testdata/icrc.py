"""Prints the ICRC of each frame of a pcap, in hexadecimal as on the wire.

scapy.contrib.roce computes that of IPv4 frames. It does not support IPv6, so for
IPv6 this is an independent implementation of IBA 1.4, annex A17.3.3, with zlib.
"""

import struct
import sys
import zlib

from scapy.contrib.roce import BTH
from scapy.layers.inet import IP
from scapy.utils import RawPcapReader

ETHERNET, IPV6, UDP, ICRC = 14, 40, 8, 4


def by_scapy(packet):
    """Builds the frame with scapy, which computes the ICRC."""
    ip = IP(packet)
    ip[BTH].icrc = None
    return bytes(ip)[-ICRC:]


def by_zlib(packet):
    """Masks the fields that routers change and computes the CRC of the rest."""
    masked = bytearray(packet[:-ICRC])
    masked[0:4] = b"\x6f\xff\xff\xff"  # traffic class, flow label
    masked[7] = 0xFF  # hop limit
    masked[IPV6 + 6:IPV6 + 8] = b"\xff\xff"  # UDP checksum
    masked[IPV6 + UDP + 4] = 0xFF  # FECN, BECN, reserved
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(masked)))


for frame, _ in RawPcapReader(sys.argv[1]):
    packet = frame[ETHERNET:]
    icrc = by_scapy(packet) if packet[0] >> 4 == 4 else by_zlib(packet)
    print(icrc.hex())
