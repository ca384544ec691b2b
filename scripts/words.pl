# Prints lines of files whose comments, strings or prose have an expression of a list. Exit code 1 if there are any.
# Usage: perl words.pl WORDS LIST_OF_FILES [LIST_OF_LINES]     lines: FILE:LINE, FILE:* for all
#
# Read of C++ and .proto: comments, and strings outside tests/. Of .md: prose outside code. Of scripts and CMake: comments.
use strict;
use warnings;

my ($words_file, $list, $lines_file) = @ARGV;
my (@words, %only);
open my $in, '<', $words_file or die "$words_file: $!";
while (<$in>) {
  next if /^\s*(#|$)/;
  chomp;
  my ($expression, $instead) = split /\t+/, $_, 2;
  push @words, [qr/\b(?:$expression)\b/i, $instead];
}
close $in;
if (defined $lines_file) {
  open $in, '<', $lines_file or die "$lines_file: $!";
  while (<$in>) { chomp; $only{$_} = 1 }
  close $in;
}

my ($found, $files) = (0, 0);
open my $names, '<', $list or die "$list: $!";
while (my $file = <$names>) {
  chomp $file;
  open $in, '<', $file or next;
  ++$files;
  my $code = 0;
  while (my $line = <$in>) {
    my $text = '';
    if ($file =~ /\.md$/) {
      $code = !$code if $line =~ /^\s*```/;
      $text = $line unless $code || $line =~ /^    /;
      $text =~ s/`[^`]*`/ /g;
    } elsif ($file =~ /\.(h|cpp|cu|proto)$/) {
      my $rest = $line;
      my $strings = $file =~ m{^tests/} || $line =~ /^\s*#include/ ? 0 : 1;
      while ($rest =~ s{^[^"/]*?(?:"((?:[^"\\]|\\.)*)"|(//.*)|[/"])}{}) {
        $text .= "$1 " if defined $1 && $strings;
        $text .= "$2 " if defined $2;
      }
      $text =~ s/`[^`]*`/ /g;
    } elsif ($line =~ /(?:^|\s)#(.*)/) {
      $text = $1;
    }
    next if $text eq '';
    next if %only && !$only{"$file:$."} && !$only{"$file:*"};
    next if defined $lines_file && !%only;
    for my $word (@words) {
      my ($expression, $instead) = @$word;
      next unless $text =~ /($expression)/;
      ++$found;
      print "words: $file:$.: '$1': write $instead\n";
    }
  }
  close $in;
}
print "words: $found found in $files files\n";
exit($found > 0);
