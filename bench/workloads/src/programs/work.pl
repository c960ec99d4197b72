# The work of `perl`: hashes, regular expressions, sorting, formats. Reads the text from standard input.
use strict;
use warnings;

my (%words, %pairs, @lines, $numbers, $previous);
while (my $line = <STDIN>) {
    chomp $line;
    $numbers += $1 while $line =~ /\b(\d+)\b/g;
    (my $changed = $line) =~ s/(\w)(\w*)/\U$1\E$2/g;
    $changed =~ tr/a-z/n-za-m/;
    push @lines, $changed if $line =~ /^(?:\w+\s+)*?(k\w+)\s+(?:\w+\s+)?(\w*o\w*)/;
    for my $word (split ' ', $line) {
        $words{$word}++;
        $pairs{"$previous $word"}++ if defined $previous;
        $previous = $word;
    }
}
for my $counts (\%words, \%pairs) {
    my @order = sort { $counts->{$b} <=> $counts->{$a} || $a cmp $b } keys %$counts;
    printf "%-40s %8d\n", $_, $counts->{$_} for @order[0 .. ($#order < 99 ? $#order : 99)];
    print scalar(@order), "\n";
}
print "$numbers\n", join("\n", sort @lines), "\n";
