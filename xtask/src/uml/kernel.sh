#!/bin/sh
# Builds a User Mode Linux for `cargo xtask uml --kernel`: newer than Debian's, with nf_tables for IPv4 and
# IPv6, so that all modes can follow each other in one guest, and with the faster way to run programs
# (seccomp, Linux 6.16 and newer).
#
#   sh xtask/src/uml/kernel.sh linux-source-7.2.tar.xz target/kernel
#
# In: a Linux source tree packed by tar, as Debian's linux-source packages have it. Out: `linux` and
# `modules` in the folder. Needs make, gcc, flex, bison and bc.
set -eu
archive=$(realpath "$1")
config=$(realpath "$(dirname "$0")/kernel.config")
mkdir -p "$2"
cd "$2"
mkdir -p source build
[ -e source/Makefile ] || tar -xf "$archive" -C source --strip-components=1 \
  --exclude='*/Documentation/*.rst' --exclude='*/Documentation/*.yaml' --exclude='*/tools/testing/*' \
  --exclude='*/drivers/gpu/drm/*.[ch]' --exclude='*/sound/*.c'
make="make -C source ARCH=um O=$PWD/build"
$make defconfig
source/scripts/kconfig/merge_config.sh -m -O build build/.config "$config"
$make olddefconfig
# What was asked for and is not there is an option that this Linux has under another name, or not at all.
grep '=y$' "$config" | while read -r option; do
  grep -qx "$option" build/.config || echo "not there: $option"
done
$make -j"$(nproc)" linux modules
$make modules_install INSTALL_MOD_PATH="$PWD/installed"
cp build/linux linux
rm -rf modules && mv installed/lib/modules modules && rm -r installed
./linux --version
